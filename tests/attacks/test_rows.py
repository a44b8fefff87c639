"""Rows of patients that sums of products show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.attacks.coordinator import initial, plain
from support.attacks.hospitals import DIGITS, SITES, hospital, table_study
from support.attacks.rows import digits, few_rows, known, lone_rows
from support.attacks.thresholds import gram, passed

from hierfl.inference.state import State


@pytest.mark.parametrize(
    ("formula", "who"),
    [
        ("y ~ age + sex + stage + (1 | site)", 7),
        ("y ~ age + sex + stage:sex + (1 | site)", 7),
        ("y ~ age + sex + where(age > 90, 1, 0) + (1 | site)", 3),
        ("y ~ age + sex + maximum(age - 90, 0) + (1 | site)", 3),
    ],
)
def test_a_column_that_one_patient_has_shows_the_row(formula: str, who: int, tmp_path: Path) -> None:
    """Of a site without a gate, from its first sums."""
    df = hospital()
    site = plain(tmp_path / "site", table_study(tmp_path, formula, df), "north", tmp_path / "north.csv")
    assert site.prepared(), site.refusals
    rows = lone_rows(site.sums(site.totals[:1])["gram"].numpy())
    ages = [row[1] for row in rows if np.isclose(row[2], float(df.sex[who] == "m"))]
    assert np.isclose(ages, df.age[who]).any()


def test_three_patients_are_read_whole(tmp_path: Path) -> None:
    """Of cross-products of one round: all rows, outcomes included."""
    df = pd.DataFrame({"y": [5.1, 7.7, 7.4], "age": [71, 45, 83], "hiv": [1, 0, 0]})
    path = table_study(tmp_path, "y ~ age + hiv + (1 | site)", df, "gaussian", one_round=True, least_rows=1)
    site = plain(tmp_path / "site", path, "north", tmp_path / "north.csv")
    assert site.prepared(), site.refusals
    message = site.round(1, initial(site.study, site.totals))
    assert message is not None
    (table,) = few_rows(*whole_sums(site.totals, message, len(SITES)))
    assert known(list(table), df[["age", "hiv", "y"]].to_numpy(float)) == 3


def whole_sums(totals: list[State], message: State, sites: int) -> tuple[np.ndarray, np.ndarray]:
    """X'X and X'y of the table's own columns, from a message of one round; of totals that are ``sites`` times the
    site's own."""
    second = {name: value.numpy() / sites for name, value in totals[1].items()}
    n, mean, y = second["gram"][0, 0], second["gram"][0, 1:] / second["gram"][0, 0], float(second["response.total"][0])
    scale = np.sqrt(second["gram"].diagonal()[1:] / n - mean**2)
    sums = np.zeros((5, 5))
    sums[np.triu_indices(5)] = message["effects|gram"].numpy()
    return second["gram"], np.array([y, *(sums[2:4, 4] * scale + mean * y)])


def test_made_up_totals_move_a_threshold_over_all_patients(tmp_path: Path) -> None:
    """Of a site without a gate: every patient whose age nobody shares, with sex."""
    df = hospital().drop(columns="stage")
    path = table_study(tmp_path, "y ~ where(center(age) > 0, 1, 0) + sex + (1 | site)", df)
    site = plain(tmp_path / "site", path, "north", tmp_path / "north.csv")
    cuts = np.arange(39.5, 98)
    rows = passed(cuts, (gram(site, cut) for cut in cuts))
    alone = df[df.groupby("age").age.transform("size") == 1].sort_values("age")
    assert [(low + 0.5, row[2] == 1.0) for low, _, row in rows] == list(zip(alone.age, alone.sex == "m", strict=True))
    assert len(rows) > 10


def test_digits_of_one_sum_are_counts_of_every_age_and_sex(tmp_path: Path) -> None:
    """Of a site without a gate: a column of powers, one for each age from 60 to 71."""
    df = hospital(60, lone=False)
    path = table_study(tmp_path, f"y ~ {DIGITS} + sex + (1 | site)", df)
    site = plain(tmp_path / "site", path, "north", tmp_path / "north.csv")
    assert site.prepared(), site.refusals
    sums = site.sums(site.totals[:1])["gram"].numpy()
    men = df[df.sex == "m"].age
    counts = digits(sums[2, 1] - (men < 60).sum(), 16, 12)
    assert counts == [int((men == age).sum()) for age in range(60, 72)]
    assert 1 in counts
