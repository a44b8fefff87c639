"""Tables of docs/privacy-networks.md from experiments/results/privacy/networks-*.csv.

    python tests/support/privacy_tables.py

prints them. A number is a mean over seeds and, after it, the standard error of that mean.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

sys.path.append(str(Path(__file__).parents[1]))
from support.paths import ROOT

RESULTS = ROOT / "experiments" / "results" / "privacy"
NAMES = {"fedavg": "FedAvg", "pfedvem": "pFedVEM"}
PLACES = {"none": "none", "site": "inside clients", "client": "on the sum"}


def results(part: str) -> pd.DataFrame:
    """One file of results, epsilons as words."""
    return pd.read_csv(RESULTS / f"networks-{part}.csv", dtype={"epsilon": str}, keep_default_na=False, na_values=[""])


def accuracies(part: str, clients: int) -> str:
    """Of a data set and number of clients: accuracy, NLL and ECE against epsilon."""
    table = results(part)
    table = table[table.clients == clients]
    columns = {"pm_accuracy": 3, "gm_accuracy": 3, "pm_nll": 2, "gm_nll": 2, "pm_ece": 3}
    head = ["method", "noise", "epsilon", "PM accuracy", "GM accuracy", "PM NLL", "GM NLL", "PM ECE"]
    rows = [
        [NAMES[row["method"]], PLACES[row["unit"]], "" if row["epsilon"] == "none" else row["epsilon"]]
        + [_with_error(row[name], row[f"{name}_se"], digits) for name, digits in columns.items()]
        for row in table.to_dict("records")
    ]
    return _markdown(head, rows)


def membership() -> str:
    """Of the attack: area under the curve, and what epsilon allows."""
    head = ["rows", "epsilon", "AUC", "named while 1 % of others are", "others predicted right", "best attack's AUC",
            "bound of any"]  # fmt: skip
    rows = [
        [str(row["rows"]), row["epsilon"], _with_error(row["auc"], row["auc_se"], 3),
         f"{100 * row['tpr_at_fpr_1']:.1f} %", f"{100 * row['others_right']:.0f} %",
         *("" if pd.isna(row[name]) else f"{row[name]:.3f}" for name in ("auc_best", "auc_bound"))]
        for row in results("membership").to_dict("records")
    ]  # fmt: skip
    return _markdown(head, rows)


def _with_error(value: float, error: float, digits: int) -> str:
    return "" if pd.isna(value) else f"{value:.{digits}f} ± {error:.{digits}f}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("|" + "|".join(f" {cell} " if cell else " " for cell in line) + "|" for line in lines)


TABLES: dict[str, Callable[[], str]] = {
    "digits, 20 clients": lambda: accuracies("digits", 20),
    "digits, 200 clients": lambda: accuracies("digits", 200),
    "Fashion-MNIST, 1,000 clients": lambda: accuracies("fashion-mnist", 1000),
    "membership": membership,
}

if __name__ == "__main__":
    for title, table in TABLES.items():
        print(f"{title}\n\n{table()}\n")
