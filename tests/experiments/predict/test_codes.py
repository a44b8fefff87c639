"""Codes for missing values among new rows are named, and predicted as numbers."""

from __future__ import annotations

import logging
from pathlib import Path

import pandas as pd
import pytest

from hierfl.data.far_numbers import warn_of_far
from hierfl.errors import UserError
from hierfl.experiments.predict.codes import refuse_codes, warn_of_codes, warn_of_codes_at_site, warnings_kept


@pytest.mark.parametrize(
    ("numbers", "warned"),
    [([-999], True), ([-999, 5], True), ([0, 9999, 1, 2], True), ([-99, -98.5], False), ([9], False)],
)
def test_a_code_is_named(numbers: list[float], warned: bool) -> None:
    with warnings_kept() as lines:
        warn_of_codes(pd.DataFrame({"x": numbers, "other": -999}), ["x", "absent"])
    assert bool(lines) is warned


def test_a_site_is_warned_of_columns_without_a_range(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "new.csv"
    path.write_text("age,dose,stage\n-999,-999,I\n60,1,II\n")
    columns = {"age": {"kind": "number"}, "dose": {"kind": "number", "least": -1e4}, "stage": {"kind": "category"}}
    with caplog.at_level(logging.WARNING, "hierfl"):
        warn_of_codes_at_site(columns, path, None)
    assert [record.getMessage() for record in caplog.records] == [
        "column 'age' is -999 in 1 row, which may be a missing value: it is predicted as a number"
    ]


def test_a_request_with_a_code_beside_ordinary_numbers_is_refused_as_a_file_is() -> None:
    with pytest.raises(UserError, match="'x' holds -999 in 1 row, and all others lie from 1 to 3: leave such rows out"):
        refuse_codes(pd.DataFrame({"x": [1.0, 2, -999, 3], "other": -999}), ["x", "absent"])
    refuse_codes(pd.DataFrame({"x": [-999.0], "word": "a"}), ["x", "word"])  # nothing to compare it with: it is named


@pytest.mark.parametrize(
    ("spread", "number", "warned"),
    [((50.0, 10.0), 720, True), ((50.0, 10.0), 140, False), ((0.001, 0.000999**0.5), 1, False)],
)
def test_a_number_far_from_the_fitted_rows_is_named(spread: tuple[float, float], number: float, warned: bool) -> None:
    with warnings_kept() as lines:
        warn_of_far({"age": [spread[0], number], "other": [1e9]}, {"age": spread})
    assert bool(lines) is warned
    assert not warned or lines[0].startswith("column 'age' is 720 in 1 row, 67 standard deviations from the mean")
