"""The grid file of golden runs: which cases there are, on what data, and what may differ."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from support.responses import CASES


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

    data: Mapping[str, int]
    cases: Mapping[str, str]
    allowed: tuple[Allowed, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Grid:
        """Reads the file.

        Raises:
            ValueError: for a case that does not say population=.
        """
        held = tomllib.loads(path.read_text())
        words = {**dict(_product(held["grid"], held["words"])), **held["cases"]}
        cases = {name: " ".join(text.format(**held["words"]).split()) for name, text in words.items()}
        if silent := [name for name, text in cases.items() if "population=" not in text]:
            raise ValueError(f"{path}: {silent[0]} does not say population=")
        allowed = [Allowed(**one) for one in held.get("exempt", ())]
        allowed += [Allowed(**{"relative": 0.0, **one}) for one in held.get("rounding", ())]
        return cls(held["data"], cases, tuple(allowed))

    def matching(self, pattern: str) -> list[str]:
        """Names of cases."""
        return [name for name in self.cases if fnmatchcase(name, pattern)]


def _product(grid: Mapping[str, Any], more: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """All combinations of the axes' values, lists or tables of more words, but for those that ``only`` leaves out."""
    axes = grid["axes"]
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        if not any(chosen[axis] == value and chosen[other] != wanted for axis, value, other, wanted in grid["only"]):
            of_values = [axes[axis][value] for axis, value in chosen.items() if isinstance(axes[axis], dict)]
            words = {**more, **chosen, **{name: word for table in of_values for name, word in table.items()}}
            yield grid["name"].format(**words), grid["words"].format(**words)


def table(seed: int, regions: int, sites: int, rows: int) -> pd.DataFrame:
    """So many rows of each of one to three patients at each site, sites in regions, the same each time.

    Columns region, site, patient (names that other sites have, too), x, z (x, of which some are missing), se, weight,
    log_time, and of every response its own: y_NAME, n_NAME, event_NAME.
    """
    rng = np.random.default_rng(seed)
    cells = [(s % regions, s, p) for s in range(sites) for p in range(1 + (s + 1) % 3) for _ in range(rows)]
    region, site, patient = np.array(cells).T
    x = rng.normal(size=len(cells))
    effect = 0.8 * rng.normal(size=regions)[region] + 0.7 * rng.normal(size=sites)[site]
    effect += 0.7 * rng.normal(size=(sites, 3))[site, patient] + 0.4 * rng.normal(size=sites)[site] * x
    columns = {
        "region": [f"r{k}" for k in region], "site": [f"s{k}" for k in site], "patient": [f"p{k}" for k in patient],
        "x": x, "z": np.where(rng.random(len(x)) < 0.1, np.nan, x), "se": rng.uniform(0.3, 1.2, len(x)),
        "weight": rng.integers(1, 4, len(x)), "log_time": rng.normal(0, 0.3, len(x)),
    }  # fmt: skip
    for family, case in CASES.items():
        drawn = case.draw(rng, case.intercept + 0.7 * x + effect)
        columns |= {f"{name}_{family.replace('-', '_')}": value for name, value in drawn.items()}
    return pd.DataFrame(columns)
