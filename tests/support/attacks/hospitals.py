"""Tables of one hospital, and studies that a coordinator drafts about it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hierfl.experiments.federate.draft import draft

from ..studies import written

SITES = ("north", "south", "east")
#: a column whose sum is, as a hexadecimal number, how many rows have each age
DIGITS = "exp2(4 * (clip(age, 60, 72) - 60))"
COLUMNS: Mapping[str, Mapping[str, Any]] = {
    "y": {"kind": "whole", "least": 0, "most": 1},
    "age": {"kind": "whole", "least": 18, "most": 110},
    "sex": {"kind": "category", "levels": ["f", "m"]},
    "stage": {"kind": "category", "levels": ["I", "II", "III", "IV"]},
}


def hospital(rows: int = 40, *, lone: bool = True, seed: int = 5) -> pd.DataFrame:
    """Patients, of whom where ``lone`` one has stage IV and another is older than 90."""
    rng = np.random.default_rng(seed)
    age = rng.integers(40, 90, rows)
    stage = rng.choice(["I", "II", "III"], rows)
    if lone:
        age[3], stage[7] = 97, "IV"
    return pd.DataFrame(
        {"y": rng.integers(0, 2, rows), "age": age, "sex": rng.choice(["f", "m"], rows), "stage": stage}
    )


def table_study(
    folder: Path, formula: str, table: pd.DataFrame, family: str = "binomial", name: str = "s", test: float = 0.0,
    **settings: object,
) -> Path:  # fmt: skip
    """study.toml, and ``north.csv`` beside it."""
    table.to_csv(folder / "north.csv", index=False)
    out = folder / "study.toml"
    table.to_csv(folder / "sample.csv", index=False)
    given = {"formula": formula, "family": family, "test_fraction": test}
    columns = {column: COLUMNS.get(str(column), {"kind": "number"}) for column in table}
    columns |= {"y": {"kind": "number"}} if family == "gaussian" else {}
    text = draft("mixed-effects", folder / "sample.csv", list(SITES), name, given, {"draws": 0, **settings}, out=out)
    return written(folder, text, columns)
