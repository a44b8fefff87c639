"""Ablations side by side: where does the hierarchical prior help, and whom?

    hierfl ablation-table runs/ablate-* --out ablations.md

Takes folders of ``hierfl ablate`` (or what is kept of them: the files of their ``comparison``), and writes two tables:
a row for each method, data set and prior that the hierarchical one is compared with, gains with their intervals; and
the gains of the smallest and the largest third of the clients. Positive is better; an interval with zero in it is open.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from hierfl.errors import UserError
from hierfl.schema import read_json

from ..run_folder.csv_files import read_frame

#: metrics in the tables, the first that there is of each pair: label, factor, digits
TABLE_METRICS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("accuracy", "rmse"), "accuracy, pp (RMSE)"),
    (("nll",), "NLL"),
)
FACTORS = {"accuracy": (100, 2)}


def read(folder: Path) -> dict[str, Any]:
    """One ablation: method, data, seeds, clients, its tables of gains and of sizes.

    Raises:
        UserError: for a folder that holds none.
    """
    pictures = folder / "comparison" if (folder / "comparison").is_dir() else folder
    if not (pictures / "comparison.json").is_file():
        raise UserError(f"{folder} holds no ablation (comparison/comparison.json)")
    record = read_json(pictures / "comparison.json")
    names = list(record["settings"])
    first = record["settings"][names[0]]
    return {
        "method": Path(first["run"]["method"]).stem,
        "data": Path(first["run"]["data"]).stem,
        "priors": {name: record["settings"][name]["settings"]["prior"] for name in names},
        "table": read_frame(pictures / "table.csv", ("over", "kind", "metric")),
        "sizes": read_frame(pictures / "sizes.csv", ("over", "kind", "metric")),
    }


def _gain(row: pd.Series, metric: str) -> str:
    factor, digits = FACTORS.get(metric, (1, 3))
    gain, low, high = (factor * float(row[k]) for k in ("gain", "low", "high"))
    text = f"{gain:+.{digits}f}"
    if low != low:
        return text
    return f"{text} ({low:+.{digits}f}…{high:+.{digits}f}){'' if low <= 0 <= high else ' *'}"


def _last(table: pd.DataFrame, over: str) -> pd.DataFrame:
    """Rows of one comparison: averaged over draws, where there are any."""
    mine = table[table["over"] == over]
    return mine[mine["kind"] == mine["kind"].iloc[-1]]


def rows(ablation: dict[str, Any]) -> tuple[list[list[str]], list[list[str]]]:
    """Rows of both tables."""
    gains, sizes = [], []
    for over, prior in list(ablation["priors"].items())[1:]:
        table, thirds = _last(ablation["table"], over), _last(ablation["sizes"], over)
        head = [ablation["method"], ablation["data"], prior]
        cells, parts = [], []
        for metrics, _ in TABLE_METRICS:
            metric = next(m for m in metrics if m in set(table["metric"]))
            row = table[table["metric"] == metric].iloc[0]
            cells.append(_gain(row, metric))
            span = thirds[thirds["metric"] == metric]
            ends = [span.iloc[0], span.iloc[-1]] if len(span) > 1 else []
            parts += [_gain(end, metric) for end in ends] or ["", ""]
        better = table[table["metric"] == "nll"].iloc[0]
        gains.append([*head, str(better["seeds"]), *cells, f"{better['share_better']:.0%}"])
        n = [f"{t['n_from']:.0f} to {t['n_to']:.0f}" for _, t in thirds[thirds["metric"] == "nll"].iterrows()]
        if len(n) > 1:
            sizes.append([*head, n[0], parts[0], parts[2], n[-1], parts[1], parts[3]])
    return gains, sizes


def markdown(every: Sequence[dict[str, Any]]) -> str:
    """Both tables."""
    both = [rows(ablation) for ablation in every]
    labels = [label for _, label in TABLE_METRICS]
    words = (
        "Gains of the hierarchical prior, averaged draws (points: at the point), mean over clients and seeds, 95 % "
        "interval; * where it does not hold zero. Each prior has its own scale, chosen on validation data."
    )
    lines = [words, "", *_table(["method", "data", "over", "seeds", *labels, "clients that gain in NLL"],
                                [row for gains, _ in both for row in gains])]  # fmt: skip
    small, large = ([f"{size}: {label}" for label in labels] for size in ("small", "large"))
    lines += ["", "The smallest and the largest third of the clients, by training examples:", ""]
    lines += _table(["method", "data", "over", "small: n", *small, "large: n", *large], [r for _, s in both for r in s])
    return "\n".join([*lines, ""])


def _table(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (columns, ["---"] * len(columns), *cells)]
