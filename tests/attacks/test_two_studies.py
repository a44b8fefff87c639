"""Two studies, each of which keeps all rules by itself, and of which the difference of the sums is a few rows."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tomli_w
from support.attacks.gated import Hospital
from support.attacks.hospitals import hospital, table_study

from hierfl.data.arrays import test_rows as held_out


def patients() -> pd.DataFrame:
    """Of whom one is 61 years old and nobody 60; with outcomes, wards and measurements that are nearly one."""
    df, rng = hospital(300, lone=False), np.random.default_rng(3)
    df.loc[df.age.isin([60, 61]), "age"] = 62
    df.loc[9, "age"] = 61
    df["dead30"] = rng.integers(0, 2, 300)
    df["dead28"] = df.dead30.where(~df.index.isin(np.flatnonzero(df.dead30)[:2]), 0)
    df["ward"] = rng.integers(0, 2, 300)
    df["unit"] = df.ward.where(df.index != np.flatnonzero(df.ward)[0], 0)
    df["weight"] = rng.normal(75, 9, 300).round(1)
    df["mended"] = df.weight + 0.5 * (df.index < 3)
    return df


@pytest.mark.parametrize(
    ("first", "second", "few"),
    [
        ("dead30 ~ sex + (1 | site)", "dead28 ~ sex + (1 | site)", True),
        ("y ~ sex + ward + (1 | site)", "y ~ sex + unit + (1 | site)", True),
        ("y ~ sex:ward + (1 | site)", "y ~ sex:unit + (1 | site)", True),
        ("y ~ tanh(90 * (age - 60.5)) + (1 | site)", "y ~ sex + tanh(90 * (age - 61.5)) + (1 | site)", True),
        ("y ~ tanh(90 * (age - 60.5)) + (1 | site)", "y ~ sex + I(5 - 2 * tanh(90 * (age - 61.5))) + (1 | site)", True),
        ("y ~ weight + (1 | site)", "y ~ mended + sex + (1 | site)", True),
        ("y ~ sex + offset(weight) + (1 | site)", "y ~ sex + offset(mended) + (1 | site)", True),
        ("y ~ sex + (1 | site)", "y ~ sex + ward + (1 | site)", False),
        ("y ~ sex + ward + (1 | site)", "dead30 ~ weight + log(weight) + (1 | site)", False),
    ],
)
def test_columns_of_two_studies_do_not_differ_in_few_rows(
    first: str, second: str, few: bool, north: Hospital, tmp_path: Path
) -> None:
    """Two outcomes, two wards, two columns of a measurement, and a steep curve that has moved over one patient."""
    df, failing = patients(), []
    for k, formula in enumerate((first, second, first)):
        folder = tmp_path / str(k)
        folder.mkdir()
        used = [name for name in df if name in formula]
        about = df[[*used, *(name for name in df if name not in used)]]
        path = north.study(table_study(folder, formula, about, "gaussian", name=f"study-{k}"))
        failing.append(north.failing(path, folder / "north.csv"))
        if not failing[-1]:
            north.approved(path, folder / "north.csv")
    assert [failing[0], failing[2]] == [[], []]
    assert ("columns of earlier studies" in failing[1]) == few


def of_times(folder: Path, df: pd.DataFrame, name: str, **columns: str) -> Path:
    """A study of times, with columns of events or weights."""
    folder.mkdir()
    path = table_study(folder, "weight ~ sex + (1 | site)", df, "weibull", name=name)
    table = tomllib.loads(path.read_text())
    table["data"] |= columns
    path.write_text(tomli_w.dumps(table))
    return path


@pytest.mark.parametrize("role", ["event", "weights"])
def test_events_and_weights_of_few_are_refused(role: str, north: Hospital, tmp_path: Path) -> None:
    """Two events of 300 patients, and events or weights that differ from those of an earlier study in two patients."""
    df = patients()
    df["first"], df["second"] = df.dead30 + (role == "weights"), df.dead28 + (role == "weights")
    df["rare"] = 1.0 * (df.index < 2) + 1e6 * (df.index < 2) * (role == "weights") + (role == "weights")
    if role == "event":
        df["rare"] = df.rare.astype(int)
    failing = {}
    for name in ("rare", "first", "second", "first"):
        path = north.study(of_times(tmp_path / f"{name}-{len(failing)}", df, f"{name}-{len(failing)}", **{role: name}))
        failing[f"{name}-{len(failing)}"] = north.failing(path, path.parent / "north.csv")
        if name == "first":
            north.approved(path, path.parent / "north.csv")
    assert [bool(rules) for rules in failing.values()] == [True, False, True, False]
    assert failing["second-2"] == ["columns of earlier studies"]


def test_columns_of_training_rows_count_by_themselves(north: Hospital, tmp_path: Path) -> None:
    """Wards that differ in six patients, of whom all but two are held out."""
    df = patients()
    out, ones = held_out(np.full(300, "north"), 0.3, 0), df.ward == 1
    df["unit"] = df.ward
    df.loc[[*np.flatnonzero(ones & out)[:4], *np.flatnonzero(ones & ~out)[:2]], "unit"] = 0
    path = north.study(table_study(tmp_path, "y ~ sex + ward + (1 | site)", df, "gaussian", name="first", test=0.3))
    assert north.approved(path, tmp_path / "north.csv").study.table["run"]["seed"] == 0
    path = north.study(table_study(tmp_path, "y ~ sex + unit + (1 | site)", df, "gaussian", name="second", test=0.3))
    assert north.failing(path, tmp_path / "north.csv") == ["columns of earlier studies"]
