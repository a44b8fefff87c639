"""A study with noise: four sites' tables, a network's inputs, and the tiny method of :mod:`support.noisy`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
from support import noisy
from support.studies import FileStudy, patients, write_tables, written

from hierfl.experiments.federate.draft import draft
from hierfl.experiments.federate.guard.policy import Policy
from hierfl.experiments.federate.guard.simulated import PERMISSIVE_POLICY

#: columns, as the study declares them
COLUMNS = {
    "age": {"kind": "number", "least": 0, "most": 120},
    "stage": {"kind": "category", "levels": ["I", "II", "III", "IV"]},
    "ill": {"kind": "flag"},
}
#: with noise inside the sites
NOISE: dict[str, Any] = {"dp": "site", "epsilon": 2.0}


def own_files(folder: Path, sites: int = 4) -> dict[str, Path]:
    """Every site's table: age, stage, whether somebody is ill, and who it is (two rows each)."""
    df = patients(sites)
    df["ill"] = (df.pop("y") > 0.5).astype(int)
    df["who"] = [f"p{k // 2}" for k in range(len(df))]
    return write_tables(df, folder / "data")


def noisy_study(folder: Path, files: dict[str, Path], columns: Any = COLUMNS, **privacy: Any) -> Path:
    """study.toml, beside the method's file."""
    folder.mkdir(parents=True, exist_ok=True)
    method = folder / "noisy.py"
    shutil.copy(noisy.__file__, method)
    sample = folder / "sample.csv"
    rows = {"age": [40.5, 80.5], "stage": ["I", "II"], "ill": [False, True]}
    pd.DataFrame(rows).to_csv(sample, index=False)
    options = {"rounds": 3, "network": "linear", **NOISE}
    text = draft(str(method), sample, list(files), "noisy", options, {}, y="ill", out=folder / "study.toml")
    path = written(folder, text, columns)
    if privacy:
        import tomllib

        table = tomllib.loads(path.read_text())
        written(folder, path.read_text(), columns, privacy={**table["privacy"], **privacy})
    return path


def noisy_place(folder: Path, policy: Policy = PERMISSIVE_POLICY, **privacy: Any) -> FileStudy:
    """The study, before its first question."""
    files = own_files(folder)
    return FileStudy(noisy_study(folder, files, **privacy), files, folder, policy=policy)
