"""Codes for missing values among new rows are named, and predicted as numbers."""

from __future__ import annotations

import logging
from pathlib import Path

import pandas as pd
import pytest

from hierfl.experiments.predict.codes import warn_of_codes, warn_of_codes_at_site, warnings_kept


@pytest.mark.parametrize(
    ("numbers", "said"),
    [([-999], True), ([-999, 5], True), ([0, 9999, 1, 2], True), ([-99, -98.5], False), ([9], False)],
)
def test_a_code_is_named(numbers: list[float], said: bool) -> None:
    with warnings_kept() as lines:
        warn_of_codes(pd.DataFrame({"x": numbers, "other": -999}), ["x", "absent"])
    assert bool(lines) is said


def test_a_site_is_warned_of_columns_without_a_range(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "new.csv"
    path.write_text("age,dose,stage\n-999,-999,I\n60,1,II\n")
    columns = {"age": {"kind": "number"}, "dose": {"kind": "number", "least": -1e4}, "stage": {"kind": "category"}}
    with caplog.at_level(logging.WARNING, "hierfl"):
        warn_of_codes_at_site(columns, path, None)
    assert [record.getMessage() for record in caplog.records] == [
        "column 'age' is -999 in 1 row, which may be a missing value: it is predicted as a number"
    ]
