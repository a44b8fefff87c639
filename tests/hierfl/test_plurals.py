"""Counts in sentences."""

from __future__ import annotations

from hierfl.plurals import counted


def test_one_and_many() -> None:
    assert counted(1, "round") == "1 round"
    assert counted(0, "round") == "0 rounds"
    assert counted(2, "class") == "2 classes"
    assert counted(1.0, "row", "fits", "fit") == "1 row fits"
    assert counted(12, "row", "fits", "fit") == "12 rows fit"
