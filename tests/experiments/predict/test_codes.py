"""Codes for missing values among new rows are named, and predicted as numbers."""

from __future__ import annotations

import logging
from pathlib import Path

import pandas as pd
import pytest

from hierfl.data.far_numbers import sure_decimals, warn_of_far
from hierfl.data.federation import Federation
from hierfl.errors import UserError
from hierfl.experiments.configure import configure
from hierfl.experiments.predict.codes import refuse_codes, warn_of_codes, warn_of_codes_at_site, warnings_kept
from hierfl.experiments.predict.new_rows import network_rows


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


def test_points_of_new_numbers_are_sure_where_the_fitted_rows_show_them() -> None:
    """27.688 beside a fitted mean of 25 is no 27688; 1.234 beside one of 2000 may be 1234."""
    new = pd.DataFrame({"bmi": [27.688, 21.125], "steps": [1.234, 2.345], "word": ["a", "b"], "constant": 0.125})
    spread = {"bmi": (25.0, 4.0), "steps": (2000.0, 500.0), "word": (0.0, 1.0), "constant": (1.0, 0.0)}
    assert sure_decimals(new, spread) == {"bmi"}


def test_new_rows_may_be_a_saved_data_set_with_numbers_of_three_decimals(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its json files are no LEAF's."""
    arrow = pytest.importorskip("pyarrow")
    rows = arrow.table({"site": ["a", "b"], "bmi": [27.688, 21.125]})
    with arrow.ipc.new_stream(str(tmp_path / "data.arrow"), rows.schema) as writer:
        writer.write_table(rows)
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    (tmp_path / "new.csv").write_text("site,bmi\na,27.688\nb,21.125\n")
    fed = Federation.from_frame(
        pd.DataFrame({"site": ["a", "b"] * 9, "bmi": [25.0, 29.5, 21] * 6, "y": [0.5, 1, 2] * 6}), client="site", y="y"
    )
    run = configure("pfedvem", str(tmp_path), {"group": "site", "y": "y"}, {}).run
    for path in (tmp_path, tmp_path / "new.csv"):
        assert network_rows(path, fed, run, None, None).owner.tolist() == ["a", "b"]
    assert not [line for line in caplog.messages if "27.688" in line]
