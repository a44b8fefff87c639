"""Row sets of two studies, by keyed hashes of cells: the same, differing by few rows, or other data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hierfl.data.disclosure.row_hashes import PART, differing, least_difference, row_hashes, same_data
from hierfl.data.federated.array_data import ArrayData
from hierfl.data.federated.column_data import ColumnData
from hierfl.data.federated.design import StudyFormula
from hierfl.data.federated.dictionary import Column, Dictionary
from hierfl.data.federated.formula_data import FormulaData

SECRET = b"s" * 32
COLUMNS = Dictionary({"y": Column("number"), "age": Column("number"), "sex": Column("category", ("f", "m"))})


def patients(n: int = 60, seed: int = 0) -> pd.DataFrame:
    """Rows of one site, with columns that no study uses."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "y": rng.normal(size=n).round(2), "age": rng.integers(20, 90, n), "sex": rng.choice(["f", "m"], n),
            "number": rng.integers(10**6, 10**7, n), "weight": rng.normal(70, 9, n).round(1),
        }
    )  # fmt: skip


@pytest.fixture
def hashes(tmp_path: Path):
    """Of a table, as a study of a formula reads it."""

    def made(df: pd.DataFrame, formula: str = "y ~ age + (1 | site)", **given):
        path = tmp_path / "own.csv"
        df.to_csv(path, index=False)
        study = FormulaData(StudyFormula(formula, COLUMNS), "trial", **given)
        return row_hashes(study.site(path, "north"), SECRET)

    return made


def test_rows_are_known_again_whatever_a_study_uses_of_them(hashes) -> None:
    """In another order, with another column, with fewer columns, and read by another formula."""
    df = patients()
    own = hashes(df)
    again = [
        hashes(df.sample(frac=1.0, random_state=1)), hashes(df.assign(height=1.8)), hashes(df[["y", "age", "weight"]]),
        hashes(df, "age ~ sex + (1 | site)"), hashes(df.assign(weight=df.weight * 1000)),
        hashes(df.assign(number=df.number.astype(str) + " ")),
    ]  # fmt: skip
    assert [differing(own, other) for other in again] == [0] * len(again)
    assert [least_difference(own, other) for other in again] == [None] * len(again)
    assert all(same_data(own, other) for other in again)


def test_a_patient_less_is_a_difference_of_one(hashes) -> None:
    df = patients()
    own = hashes(df)
    assert [differing(own, hashes(df[k:])) for k in (1, 4, 5)] == [1, 4, 5]
    assert differing(own, hashes(df.assign(age=df.age + (df.index == 7)))) == 2  # one row has become another
    assert differing(own, hashes(pd.concat([df, df[:1]]))) == 1
    lacks = df.assign(sex=df.sex.where(df.index > 1))
    assert least_difference(hashes(lacks), hashes(lacks, "y ~ age + sex + (1 | site)", na="drop")) == 2


def test_other_patients_are_other_data(hashes) -> None:
    first, other = patients(), patients(seed=1)
    assert not same_data(hashes(first), hashes(other))
    assert least_difference(hashes(first), hashes(other)) in (None, 120)
    half = pd.concat([first[:30], other[:30]])
    assert same_data(hashes(first), hashes(half))
    assert not same_data(hashes(first), hashes(pd.concat([first[:29], other[:31]])))


def test_columns_that_tell_no_rows_apart(hashes) -> None:
    """Sets of them are the same data where nearly all rows agree, and else are not taken for them."""
    rng = np.random.default_rng(3)
    first, other = (pd.DataFrame({"y": rng.integers(0, 2, 80), "age": rng.integers(0, 2, 80)}) for _ in range(2))
    assert differing(hashes(first), hashes(first[1:])) == 1
    assert differing(hashes(first), hashes(other)) is None


def test_splits_of_the_same_rows_are_compared_too(hashes) -> None:
    """A study without a test set and one with three test rows differ by these three."""
    df = patients()
    whole, split = hashes(df), hashes(df, test=0.05)
    assert differing(whole, split) == 0
    assert np.bincount(split[PART]).tolist() == [57, 0, 3]
    assert least_difference(whole, split) == 3
    assert least_difference(whole, hashes(df, test=0.2)) == 12
    assert np.bincount(hashes(df, test=0.2, validation=0.25)[PART]).tolist() == [36, 12, 12]


def test_conditions_of_two_studies_may_not_differ_by_few_rows_either(hashes) -> None:
    """Two thresholds between which one patient lies: each selects many, and their difference is that patient."""
    df = patients().assign(age=lambda df: 20.0 + df.index)

    def of(threshold: str):
        return hashes(df, f"y ~ where(age > {threshold}, 1, 0) + (1 | site)")

    differences = [least_difference(of("50.5"), of(other)) for other in ("50.5", "51.5", "54.5", "55.5", "60.5")]
    assert differences == [29, 1, 4, 5, 10]  # the first: all rows, and those that are left
    assert same_data(of("50.5"), of("51.5"))


def test_a_networks_table_and_arrays(tmp_path: Path, hashes) -> None:
    df, path = patients(), tmp_path / "own.csv"
    df.to_csv(path, index=False)
    study = ColumnData(COLUMNS, ("age", "y"), "sex", "trial", "linear", test=0.2, validation=0.3)
    own = row_hashes(study.site(path, "north"), SECRET)
    assert differing(own, hashes(df[1:])) == 1  # also of a study of a formula
    assert np.bincount(own[PART])[2] == 12
    assert np.bincount(own[PART])[1] > 0

    def arrays(n: int):
        rng = np.random.default_rng(0)
        x, y = rng.integers(0, 256, (40, 1, 4, 4), dtype=np.uint8), rng.integers(0, 2, 40)
        np.savez(tmp_path / "own.npz", x_train=x[:n], y_train=y[:n], x_test=x[30:], y_test=y[30:])
        made = ArrayData((1, 4, 4), True, 2, "trial", "linear", validation=0.0)
        return row_hashes(made.site(tmp_path / "own.npz", "north"), SECRET)

    assert differing(arrays(30), arrays(29)) == 1
    assert np.bincount(arrays(30)[PART]).tolist() == [30, 0, 10]


def test_hashes_need_the_secret(tmp_path: Path) -> None:
    """The same cell has another hash in another column, and with another secret."""
    pd.DataFrame({"y": [1.0, 2.0], "age": [1, 2]}).to_csv(tmp_path / "own.csv", index=False)
    own = FormulaData(StudyFormula("y ~ age + (1 | site)", COLUMNS), "trial").site(tmp_path / "own.csv", "north")
    first, other = row_hashes(own, SECRET), row_hashes(own, b"t" * 32)
    assert not set(first["y"].tolist()) & (set(first["age"].tolist()) | set(other["y"].tolist()))
    assert first["y"].dtype == np.int64
