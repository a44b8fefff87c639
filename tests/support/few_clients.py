"""How often tests of coefficients reject and their intervals cover where clients are few; numbers of
docs/mixed-effects.md.

    python tests/support/few_clients.py REPLICATES FOLDER [OUT.csv] [CELL ...]

Clients have 2 to 100 rows (evenly spaced logarithms, in a random order). eta_ij = 0.5 x_ij + b_j, x of rows, and a
covariate u of every other client that has no effect; the model is ``y ~ u + x + (1 | site)``. Of every replicate
FOLDER/CELL.csv has for intercept, u and x whether the 90 % interval covers and whether p < 0.05; replicates that are
there are not computed again. OUT.csv has the shares and their standard errors.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from hierfl import mixed_model

#: a coefficient of the model, and its true value
TRUE = {"Intercept": 0.0, "u": 0.0, "x": 0.5}


class Cell(NamedTuple):
    """What is simulated.

    Attributes:
        family: of the response.
        clients: J.
        tau: standard deviation of b.
        slope: of x.
        tails: degrees of freedom of b, whose distribution is Student's; 0 for normal.
    """

    family: str
    clients: int
    tau: float
    slope: float = 0.5
    tails: int = 0

    def __str__(self) -> str:
        more = f"-slope{self.slope:g}" if self.slope != 0.5 else ""
        more += f"-t{self.tails}" if self.tails else ""
        return f"{self.family}-{self.clients}-{self.tau:g}{more}"


CELLS = [
    *(Cell("gaussian", j, 1.0) for j in (4, 5, 8, 15)), Cell("gaussian", 5, 1.0, slope=20.0),
    Cell("gaussian", 15, 0.0), Cell("gaussian", 30, 1.0, tails=4),
    *(Cell("binomial", j, 0.7) for j in (4, 5, 8, 15)), Cell("binomial", 15, 3.0),
    *(Cell("poisson", j, 0.5) for j in (4, 5, 8, 15)),
]  # fmt: skip


def simulated(cell: Cell, seed: int) -> pd.DataFrame:
    """A table: site, u, x, y."""
    rng = np.random.default_rng([seed, 47])
    sizes = rng.permutation(np.exp(np.linspace(np.log(2), np.log(100), cell.clients)).round().astype(int))
    site = np.repeat(np.arange(cell.clients), sizes)
    u, x = rng.permutation(np.arange(cell.clients) % 2)[site], rng.normal(size=len(site))
    b = rng.standard_t(cell.tails, cell.clients) / np.sqrt(2) if cell.tails else rng.normal(size=cell.clients)
    eta = cell.slope * x + (cell.tau * b)[site]
    if cell.family == "gaussian":
        y = eta + rng.normal(size=len(site))
    elif cell.family == "binomial":
        y = rng.binomial(1, 1 / (1 + np.exp(-eta))).astype(float)
    else:
        y = rng.poisson(np.exp(eta)).astype(float)
    return pd.DataFrame({"site": [f"s{k}" for k in site], "u": u, "x": x, "y": y})


def hits(cell: Cell, seed: int) -> dict[str, float]:
    """Of one replicate: whether intervals cover, and tests reject."""
    fit = mixed_model(simulated(cell, seed), "y ~ u + x + (1 | site)", family=cell.family, draws=0)  # type: ignore[arg-type]
    wide, narrow = (fit.summary(level).table.set_index("effect") for level in (0.9, 0.95))
    outcomes: dict[str, float] = {"seed": seed}
    for name, value in {**TRUE, "x": cell.slope}.items():
        outcomes[f"{name} covered"] = float(wide.lower[name] <= value <= wide.upper[name])
        outcomes[f"{name} rejected"] = float(narrow.p[name] < 0.05)
    return outcomes


def run(cell: Cell, replicates: int, folder: Path) -> pd.DataFrame:
    """All replicates of a cell, those that are there included."""
    path = folder / f"{cell}.csv"
    done = pd.read_csv(path) if path.is_file() else pd.DataFrame({"seed": []})
    for seed in range(replicates):
        if seed not in set(done.seed):
            row = pd.DataFrame([hits(cell, seed)])
            done = pd.concat([done, row], ignore_index=True) if len(done) else row
            if len(done) % 50 == 0 or seed == replicates - 1:
                done.to_csv(path, index=False)
    return done


def main(replicates: int, folder: Path, out: Path | None, names: list[str]) -> None:
    """Cells of these names, or all; shares of those that are complete."""
    warnings.filterwarnings("ignore")
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for cell in CELLS:
        if names and str(cell) not in names:
            continue
        table = run(cell, replicates, folder).drop(columns="seed")
        row: dict[str, object] = {"cell": str(cell), "replicates": len(table)}
        for name in table:
            row |= {name: round(float(table[name].mean()), 4), f"se {name}": round(float(table[name].sem()), 4)}
        rows.append(row)
        print(pd.DataFrame([row]).iloc[:, :8].to_string(index=False), flush=True)
    if out is not None:
        pd.DataFrame(rows).to_csv(out, index=False)


if __name__ == "__main__":
    rest = sys.argv[3:]
    csv = Path(rest.pop(0)) if rest and rest[0].endswith(".csv") else None
    main(int(sys.argv[1]), Path(sys.argv[2]), csv, rest)
