"""Tables of docs/false-messages.md, of what liar_runs.py has written: python tests/support/liar_tables.py [FOLDER]."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

FOLDER = Path(__file__).parents[2] / "experiments/results/privacy"
#: rows that are no lies: what an honest client is worth
WORTH = ("left out", "another's rows")
LIAR = "3"


def read(folder: Path, kinds: Iterable[str]) -> pd.DataFrame:
    files = [file for kind in kinds if (file := folder / f"liars-{kind}.csv").is_file()]
    return pd.concat([pd.read_csv(file, dtype={"named": str}) for file in files]).fillna({"named": ""})


def shown(rows: Sequence[Sequence[object]], head: Sequence[object]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def paired(part: pd.DataFrame, honest: pd.DataFrame) -> np.ndarray:
    """Points of PM that are lost, by seed."""
    own, other = part.set_index("seed")["value"], honest.set_index("seed")["value"]
    return 100 * (other.reindex(own.index) - own).to_numpy()


def mean_and_error(values: np.ndarray) -> str:
    if len(values) < 2:
        return f"{values.mean():.1f}"
    return f"{values.mean():.1f} ± {values.std(ddof=1) / len(values) ** 0.5:.1f}"


def costs(results: pd.DataFrame) -> str:
    """PM of honest fits, and what each lie costs beside the honest fit of the same rule and seed."""
    rules, rows = list(dict.fromkeys(results["rule"])), []
    for (method, lie), part in results.groupby(["method", "lie"], sort=False):
        row = [method, lie]
        for rule in rules:
            own = part[part["rule"] == rule]
            if not len(own):
                row.append("")
            elif lie == "honest":
                row.append(f"{100 * own['value'].mean():.1f} %, {(own['named'] != '').sum()} of {len(own)}")
            else:
                honest = results[
                    (results["method"] == method) & (results["lie"] == "honest") & (results["rule"] == rule)
                ]
                named = "" if lie in WORTH else f", {(own['named'] == LIAR).sum()} of {len(own)}"
                row.append(f"{mean_and_error(paired(own, honest))}{named}")
        rows.append(row)
    return shown(rows, ["method", "lie", *rules])


def influence(results: pd.DataFrame) -> str:
    """By method and rule: the most that any lie moves, beside what one honest client does."""
    rows = []
    for (method, rule), part in results.groupby(["method", "rule"], sort=False):
        honest, row = part[part["lie"] == "honest"], [method, rule]
        lies = [lie for lie in dict.fromkeys(part["lie"]) if lie not in ("honest", *WORTH)]
        for measure in ("PM", "shift"):
            by_lie = {
                lie: np.abs(paired(part[part["lie"] == lie], honest)).mean()
                if measure == "PM" else part[part["lie"] == lie]["shift"].mean()
                for lie in (*lies, *WORTH)
            }  # fmt: skip
            worst = max(lies, key=lambda lie: np.nan_to_num(by_lie[lie], nan=np.inf))
            row += [f"{by_lie[worst]:.2g} ({worst})", *(f"{by_lie[lie]:.2g}" for lie in WORTH)]
        rows.append(row)
    head = ["most PM by a lie", "left out", "another's rows", "most shift by a lie", "left out", "another's rows"]
    return shown(rows, ["method", "rule", *head])


def beside_honest(results: pd.DataFrame, method: str, rule: str, own: pd.DataFrame) -> pd.Series:
    """How far fits are from the honest one of the same rule and seed, in standard errors."""
    honest = results[(results["method"] == method) & (results["lie"] == "honest") & (results["rule"] == rule)]
    return (own["errors"] - own["seed"].map(honest.set_index("seed")["errors"])).abs()


def mixed(results: pd.DataFrame) -> str:
    """Of honest fits how far they are from the one without a rule; of others from the honest fit of the same rule."""
    rows = []
    order = {method: position for position, method in enumerate(dict.fromkeys(results["method"]))}
    for (method, lie), part in sorted(results.groupby(["method", "lie"], sort=False), key=lambda at: order[at[0][0]]):
        row = [method, lie]
        for rule in ("none", "trimmed:0.1"):
            own = part[part["rule"] == rule]
            far = beside_honest(results, method, rule, own) if lie != "honest" else own["errors"].abs()
            off = "" if far.notna().all() else f" ({far.isna().sum()} failed)"
            right = (own["named"] == ("" if lie in ("honest", *WORTH) else LIAR)).sum()
            who = "nobody in " if lie in ("honest", *WORTH) else ""
            row += [f"{far.mean():.2f}, {far.max():.2f}{off}", f"{who}{right} of {len(own)}"]
        rows.append(row)
    head = ["model", "lie", "no rule: mean, largest", "named", "trimmed:0.1: mean, largest", "named"]
    return shown(rows, head)


def alarms(results: pd.DataFrame) -> str:
    clients, rows = sorted(results["clients"].unique()), []
    for method, part in results.groupby("method", sort=False):
        own = [part[part["clients"] == j]["named"] for j in clients]
        rows.append([method, *(f"{(named != '').sum()} of {len(named)}" for named in own)])
    named = results["named"] != ""
    return shown(rows, ["clients", *clients]) + f"\nIn all {named.sum()} of {len(named)}: {100 * named.mean():.1f} %.\n"


def main(folder: Path) -> None:
    networks = read(folder, ("fedavg", "pfedvem"))
    print(
        costs(networks), influence(networks), mixed(read(folder, ["mixed"])), alarms(read(folder, ["honest"])), sep="\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
