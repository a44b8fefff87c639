"""What mixed models are fitted to beside lme4: tables of a fixed seed, and both programs' calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

#: of the fixed effects' table; standard deviations of a client's intercept and slope
INTERCEPTS, SLOPES = "y ~ x + z + (1 | site)", "y ~ x + z + (1 + x | site)"
BETWEEN = (0.7, 0.4)
SIX = "y ~ x1 + x2 + x3 + x4 + x5 + (1 + x1 + x2 + x3 + x4 + x5 | site)"
NESTED = "y ~ year + (1 + year | school) + (1 + year | school:child)"


def sites(clients: int, rows: int, seed: int, binary: bool = False) -> pd.DataFrame:
    """Clients of one size whose intercept and slope of x vary; of a binary response the intercept alone."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(clients), rows // clients)
    x, z = rng.normal(size=(2, rows))
    b = rng.normal(size=(clients, 2)) * BETWEEN
    eta = 0.5 + 0.8 * x - 0.3 * z + b[who, 0] + (0.0 if binary else b[who, 1] * x)
    y = (rng.random(rows) < 1 / (1 + np.exp(-eta))).astype(float) if binary else eta + rng.normal(size=rows)
    return pd.DataFrame({"site": [f"s{j}" for j in who], "x": x, "z": z, "y": y})


def schools(rows: int = 7230, seed: int = 3) -> pd.DataFrame:
    """Children in 60 schools, seen in three to five of six years; intercepts and slopes of both vary."""
    rng = np.random.default_rng(seed)
    b, rows_so_far = rng.normal(size=(60, 2)) * [0.4, 0.1], list[tuple[str, str, float, float]]()
    child = 0
    while len(rows_so_far) < rows:
        school, c, child = child % 60, rng.normal(size=2) * [0.8, 0.2], child + 1
        for year in rng.choice(np.arange(-2.5, 3.0), size=rng.integers(3, 6), replace=False):
            mean = 0.2 + 0.75 * year + (b[school] + c) @ [1.0, year]
            rows_so_far.append((f"s{school}", f"c{child}", float(year), mean + 0.55 * rng.normal()))
    return pd.DataFrame(rows_so_far[:rows], columns=["school", "child", "year", "y"])


def six(seed: int = 9) -> pd.DataFrame:
    """Six random effects of eight clients, 100 rows each."""
    rng = np.random.default_rng(seed)
    x, who, b = rng.normal(size=(800, 5)), np.repeat(np.arange(8), 100), 0.5 * rng.normal(size=(8, 6))
    y = 1 + x.sum(1) * 0.3 + b[who, 0] + (b[who, 1:] * x).sum(1) + rng.normal(size=800)
    return pd.DataFrame(x, columns=[f"x{k}" for k in range(1, 6)]).assign(site=[f"s{j}" for j in who], y=y)


@dataclass(frozen=True)
class Case:
    """A fit by both.

    Attributes:
        table: makes the rows.
        formula: of both.
        r: what of lme4 is called, around the formula.
        how: arguments of ``mixed_model``.
        most: times lme4's CPU seconds that are wanted at most.
        slow: whether its first fit is all that is timed.
    """

    table: Callable[[], pd.DataFrame]
    formula: str
    r: str = "lmer({}, rows)"
    how: Mapping[str, Any] = field(default_factory=lambda: {"draws": 0})
    most: float = 2.0
    slow: bool = False


def binary(nodes: int, **more: Any) -> dict[str, Any]:
    """Arguments of a binomial fit by so many nodes, and lme4's call of the same."""
    how = {"family": "binomial", "nodes": nodes, "draws": 0, "population": "ml", **more}
    return {"r": f"glmer({{}}, rows, family = binomial, nAGQ = {nodes})", "how": how, "most": 1.0}


#: by name; those whose name ends in "draws" are beside the same fit without
CASES = {
    "gaussian, 2,000 x 5": Case(lambda: sites(5, 2000, 2), INTERCEPTS),
    "gaussian slopes, 2,000 x 5": Case(lambda: sites(5, 2000, 2), SLOPES),
    "nested slopes, 7,230 rows": Case(schools, NESTED, most=3.0),
    "six random effects, 800 x 8": Case(six, SIX, slow=True),
    "binomial, 1 node, 2,000 x 5": Case(lambda: sites(5, 2000, 4, binary=True), INTERCEPTS, **binary(1)),
    "binomial, 15 nodes, 2,000 x 5": Case(lambda: sites(5, 2000, 4, binary=True), INTERCEPTS, **binary(15)),
    "binomial with restricted errors, 2,000 x 5": Case(
        lambda: sites(5, 2000, 4, binary=True), INTERCEPTS, **binary(15, population="auto")
    ),
    "gaussian, 100,000 x 1,000": Case(lambda: sites(1000, 100_000, 1), INTERCEPTS),
    "gaussian slopes, 100,000 x 1,000": Case(lambda: sites(1000, 100_000, 1), SLOPES),
    "binomial, 1 node, 100,000 x 1,000": Case(
        lambda: sites(1000, 100_000, 3, binary=True), INTERCEPTS, **binary(1), slow=True
    ),
    "binomial, 15 nodes, 100,000 x 1,000": Case(
        lambda: sites(1000, 100_000, 3, binary=True), INTERCEPTS, **binary(15), slow=True
    ),
}
#: what draws cost: a fit with them beside one without
DRAWS = ("gaussian, 2,000 x 5", "gaussian slopes, 2,000 x 5", "binomial with restricted errors, 2,000 x 5")
