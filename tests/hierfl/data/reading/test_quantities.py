"""Text that looks like quantities is read as categories, and a line says so."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from hierfl import Federation, UserError, read_table
from hierfl.data.formula.federate import from_formula
from hierfl.data.reading.quantities import quantity_note
from hierfl.data.reading.remedies import OPTIONS


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        (["3-5", "10-20", "6-9"], "has ranges, such as '10-20': it is read as 3 categories, of which '10-20' is the"),
        (["<5", ">=65", "5-64"], "has ranges"), (["0", "1", "2", "5+"], "has numbers"),
        (["under 18", "18 to 65", "65+"], "has ranges"),
        (["[0,5)", "[5,10)", "[10,15]"], "has ranges"), (["1-2 %", "3-5 %"], "has ranges"),
        (["low", "medium", "high"], "'high' first as the reference: --order 'a=low<medium<high' has them in theirs"),
        (["Jan", "Feb", "Mar"], "--order 'a=Jan<Feb<Mar'"), (["Monday", "Friday", "Sunday"], "Monday<Friday<Sunday"),
        (["12 %", "30 %", "other"], "has numbers, such as '12 %', beside 'other'"),
        (["12 %", "30 %"], "has numbers, such as '12 %': it is read"),
        (["$ 5", "\u20ac 7", "free"], "has numbers, such as '$ 5'"),
        (["a", "b", "c"], ""), (["I", "II", "III"], ""), (["T1", "T2-3", "T4"], ""), (["1a", "1b", "2"], ""),
        (["never", "often"], ""), (["A-1", "B-2"], ""), (["2020-01", "x", "y"], ""), (["yes", "no"], ""),
    ],
)  # fmt: skip
def test_what_looks_like_a_quantity(levels: list[str], words: str) -> None:
    note = quantity_note("a", Counter(levels * 3), OPTIONS)
    assert (words in note) if note and words else note is None and not words, note


def test_a_table_says_it_once_and_a_declared_column_nothing(caplog: pytest.LogCaptureFixture) -> None:
    df = pd.DataFrame({"age": ["3-5", "10-20", "6-9"] * 4, "dose": ["low", "medium", "high"] * 4})
    with caplog.at_level(logging.WARNING, "hierfl"):
        read_table(df, types={"age": "category"}, order={"dose": ["low", "medium", "high"]})
    assert not caplog.records


@pytest.mark.parametrize("declared", [False, True])
def test_a_frame_says_it_where_it_is_used(caplog: pytest.LogCaptureFixture, declared: bool) -> None:
    """Its predictors that are text, for a network as for a formula; the groups and the response are names."""
    df = pd.DataFrame({"age": ["3-5", "10-20", "6-9"] * 8, "site": ["1-2", "3-4"] * 12, "y": [0.5, 2.0, 1.0, 4.0] * 6})
    if declared:
        df["age"] = df["age"].astype("category")
    with caplog.at_level(logging.WARNING, "hierfl"):
        Federation.from_frame(df, x=["age"], y="y", client="site")
        from_formula(df, "y ~ age + (1 | site)")
    lines = [line for line in caplog.messages if "has ranges" in line]
    assert len(lines) == (0 if declared else 2)
    assert all("hierfl.read_table(df, types={'age': 'category'})" in line for line in lines)


def test_points_between_thousands_alone_are_asked_about(tmp_path: Path) -> None:
    cells = ["53.200", "61.500", "70.000"]
    path = tmp_path / "t.csv"
    pd.DataFrame({"pay": cells}).to_csv(path, index=False)
    with pytest.raises(UserError, match=r"column 'pay' holds numbers as '53.200' alone"):
        read_table(path)
    assert read_table(path, decimal=",", thousands=".")["pay"].iloc[0] == float(cells[0].replace(".", ""))


def test_three_decimals_alone_are_read_with_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x\n53.217\n61.501\n70.004\n")
    with caplog.at_level(logging.WARNING, "hierfl"):
        assert read_table(path)["x"].tolist() == [53.217, 61.501, 70.004]
    assert "column 'x' holds numbers as '53.217' alone" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "hierfl"):
        read_table(path, types={"x": "number"})
    assert not caplog.records
