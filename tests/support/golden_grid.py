"""The grid file of golden runs: which cases there are, on what data, and what may differ."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from support.responses import CASES

#: responses that a table has, in the order in which they are drawn: another one would change those behind it
FAMILIES = (
    "gaussian", "binomial", "poisson", "negative-binomial", "zero-inflated-poisson", "beta-binomial", "gamma",
    "ordinal", "exponential", "weibull",
)  # fmt: skip


@dataclass(frozen=True)
class Allowed:
    """An entry of the grid file: globs of ``cases``, ``files`` and ``keys`` that may differ, and why.

    They differ by rounding, up to ``relative`` of each number (``of_largest``: of the largest under its key); or, where
    that is None, they are not compared.
    """

    cases: str
    files: str
    keys: str
    why: str
    relative: float | None = None
    of_largest: bool = False

    def holds(self, case: str, file: str, key: str) -> bool:
        """Whether it is about this."""
        return fnmatchcase(case, self.cases) and fnmatchcase(file, self.files) and fnmatchcase(key, self.keys)

    def __str__(self) -> str:
        how = (
            "exempt"
            if self.relative is None
            else f"rounding up to {self.relative:g}{' of the largest' * self.of_largest}"
        )
        return f"{how}: cases {self.cases}, files {self.files}, keys {self.keys}: {self.why}"


@dataclass(frozen=True)
class Grid:
    """A grid file: arguments of :func:`table`, cases {name: words of the command line}, and what may differ."""

    data: Mapping[str, Any]
    cases: Mapping[str, str]
    allowed: tuple[Allowed, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Grid:
        """Reads the file: cases of ``[grid]``, or of each table of ``[grids]``, and single ones.

        ``base`` names another such file, whose words, single cases and exceptions are this one's, too.

        Raises:
            ValueError: for a case that does not say population=.
        """
        grid_file = tomllib.loads(path.read_text())
        base = tomllib.loads((path.parent / grid_file["base"]).read_text()) if "base" in grid_file else {}
        more = {**base.get("words", {}), **grid_file.get("words", {})}
        grids = grid_file.get("grids", {"": grid_file["grid"]} if "grid" in grid_file else {}).values()
        products = [pair for grid in grids for pair in _product(grid, more)]
        words = {**dict(products), **base.get("cases", {}), **grid_file["cases"]}
        cases = {name: " ".join(text.format(**more).split()) for name, text in words.items()}
        if silent := [name for name, text in cases.items() if "population=" not in text]:
            raise ValueError(f"{path}: {silent[0]} does not say population=")
        allowed = [Allowed(**entry) for file in (base, grid_file) for entry in file.get("exempt", ())]
        allowed += [
            Allowed(**{"relative": 0.0, **entry}) for file in (base, grid_file) for entry in file.get("rounding", ())
        ]
        return cls(grid_file["data"], cases, tuple(allowed))

    def matching(self, pattern: str) -> list[str]:
        """Names of cases."""
        return [name for name in self.cases if fnmatchcase(name, pattern)]


def _product(grid: Mapping[str, Any], more: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """All combinations of the axes' values, lists or tables of more words, but for those that ``only`` leaves out.

    An entry of ``only`` is [axis, value, other axis, the value or values of it that go with that value].
    """
    axes = grid["axes"]
    only = [(*rule[:3], rule[3] if isinstance(rule[3], list) else [rule[3]]) for rule in grid.get("only", ())]
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        if not any(chosen[axis] == value and chosen[other] not in wanted for axis, value, other, wanted in only):
            of_values = [axes[axis][value] for axis, value in chosen.items() if isinstance(axes[axis], dict)]
            words = {**more, **chosen, **{name: word for table in of_values for name, word in table.items()}}
            yield grid["name"].format(**words), grid["words"].format(**words)


def table(seed: int, regions: int, sites: int, rows: int | Sequence[int]) -> pd.DataFrame:
    """So many rows of each of one to three patients at each site, sites in regions, the same each time.

    Columns region, site, patient (names that other sites have, too), x, z (x, of which some are missing), se, weight,
    log_time, and of every response its own: y_NAME, n_NAME, event_NAME. Then arm, one of three at each site, and
    y_separated, which is whether x is above zero.

    Args:
        seed: of all of it.
        regions, sites: how many.
        rows: of each patient; a list has those of the patients of each site.
    """
    rng = np.random.default_rng(seed)
    each = [rows] * sites if isinstance(rows, int) else rows
    cells = [(s % regions, s, p) for s in range(sites) for p in range(1 + (s + 1) % 3) for _ in range(each[s])]
    region, site, patient = np.array(cells).T
    x = rng.normal(size=len(cells))
    effect = 0.8 * rng.normal(size=regions)[region] + 0.7 * rng.normal(size=sites)[site]
    effect += 0.7 * rng.normal(size=(sites, 3))[site, patient] + 0.4 * rng.normal(size=sites)[site] * x
    columns = {
        "region": [f"r{k}" for k in region], "site": [f"s{k}" for k in site], "patient": [f"p{k}" for k in patient],
        "x": x, "z": np.where(rng.random(len(x)) < 0.1, np.nan, x), "se": rng.uniform(0.3, 1.2, len(x)),
        "weight": rng.integers(1, 4, len(x)), "log_time": rng.normal(0, 0.3, len(x)),
    }  # fmt: skip
    for family in FAMILIES:
        case = CASES[family]
        drawn = case.draw(rng, case.intercept + 0.7 * x + effect)
        columns |= {f"{name}_{family.replace('-', '_')}": value for name, value in drawn.items()}
    columns |= {"arm": [f"a{k % 3}" for k in site], "y_separated": (x > 0).astype(int)}
    return pd.DataFrame(columns)
