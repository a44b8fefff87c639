"""How often 90 % intervals cover, for each structure and response of mixed models; numbers of docs/mixed-effects.md.

    python tests/support/structure_coverage.py REPLICATES FOLDER [OUT.csv] [CELL ...]

A cell is a simulation with known truth and the call that fits it (:mod:`support.structures`). FOLDER/CELL.csv has a row
for each replicate: 1 where the interval of an effect covers its truth, 0 where it does not, nothing where the fit gives
no interval (a standard deviation that is estimated as zero). Replicates that are there are not computed again. OUT.csv
has shares with their standard errors, and how many replicates gave no interval.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pandas as pd

try:
    from support.structures import CELLS, Cell
except ModuleNotFoundError:  # as a script, beside it
    from structures import CELLS, Cell

from hierfl import mixed_model
from hierfl.errors import UserError

LEVEL = 0.9


def covered(cell: Cell, seed: int) -> dict[str, float]:
    """Of one replicate: 1, 0 or nothing for each effect whose truth is known."""
    row: dict[str, float] = {"seed": seed}
    try:
        fit = mixed_model(cell.table(seed), cell.formula, **cell.how)  # type: ignore[arg-type]
    except UserError as error:
        print(f"{cell.name}, seed {seed}: {error}", file=sys.stderr, flush=True)
        return row
    table = fit.summary(LEVEL).table.set_index("effect")
    for name, truth in cell.truth.items():
        lower, upper = table.lower[name], table.upper[name]
        row[name] = float(lower <= truth <= upper) if pd.notna(lower) and pd.notna(upper) else float("nan")
    return row


def run(cell: Cell, replicates: int, folder: Path) -> pd.DataFrame:
    """All replicates of a cell, those that are there included."""
    path = folder / f"{cell.name}.csv"
    done = pd.read_csv(path) if path.is_file() else pd.DataFrame({"seed": []})
    rows, seen = done.to_dict("records"), set(done.seed)
    for seed in range(replicates):
        if seed not in seen:
            rows.append(covered(cell, seed))
            if len(rows) % 20 == 0 or seed == replicates - 1:
                pd.DataFrame(rows).to_csv(path, index=False)
    return pd.DataFrame(rows)


def shares(cell: Cell, results: pd.DataFrame) -> pd.DataFrame:
    """A row for each effect: how often its interval covers."""
    rows = []
    for name in cell.truth:
        hits = results[name].dropna()
        share = float(hits.mean())
        rows.append(
            {
                "cell": cell.name, "effect": name, "replicates": len(hits), "without": len(results) - len(hits),
                "covered": round(share, 4), "se": round(float(hits.sem()), 4),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def main(replicates: int, folder: Path, out: Path | None, names: list[str]) -> None:
    """Cells of these names, or all."""
    warnings.filterwarnings("ignore")
    folder.mkdir(parents=True, exist_ok=True)
    tables = []
    for cell in CELLS:
        if names and cell.name not in names:
            continue
        tables.append(shares(cell, run(cell, replicates, folder)))
        print(tables[-1].to_string(index=False, header=len(tables) == 1), flush=True)
    if out is not None:
        pd.concat(tables).to_csv(out, index=False)


if __name__ == "__main__":
    rest = sys.argv[3:]
    csv = Path(rest.pop(0)) if rest and rest[0].endswith(".csv") else None
    main(int(sys.argv[1]), Path(sys.argv[2]), csv, rest)
