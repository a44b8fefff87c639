"""Names that differ in blanks, capitals, quotes, dashes, zeros or Unicode form alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hierfl.data.spellings import Spellings, alike, as_known, folded, joined, joined_inside
from hierfl.errors import UserError

SAME = [
    ("ward A", "ward A "), ("ward A", " ward A"), ("ward A", "ward  A"), ("ward A", "ward\u00a0A"),
    ("ward A", "Ward a"), ("ward A", "ward\u200b A"), ("caf\u00e9", "cafe\u0301"), ("\u00c9", "e\u0301"),
    ("12", "\uff11\uff12"), ("m2", "m\u00b2"), ("stra\u00dfe", "STRASSE"), ("\ufb01", "fi"),
    ("\u212b", "\u00e5"), ("A", "\uff41"), ("1", "01"), ("1", "1.0"), ("0", "00"), ("-7", "\u221207.00"),
    ("St. John's", "St. John\u2019s"), ("a-b", "a\u2013b"), ("'a'", "\u00b4a`"), ('"a"', "\u201ea\u201c"),
    ("a", 'a"'),
    ("a", "\u201ca\u201d"),
    ("ward b", "'ward b"),
]  # fmt: skip
OTHER = [
    ("1", "10"),
    ("ward A", "ward B"),
    ("a-b", "a b"),
    ("e", "\u00e9"),
    ("wardA", "ward A"),
    ("1.1", "1.10"),
    ("A1", "A01"),
    ("o'brien", "obrien"),
]


@pytest.mark.parametrize(("spelling", "other"), SAME)
def test_one_name_in_two_spellings_is_refused_or_joined_to_the_most_frequent(spelling: str, other: str) -> None:
    assert folded(spelling) == folded(other)
    column = pd.Series([spelling, other, "z", spelling, None], name="ward")
    with pytest.raises(UserError) as refused:
        joined(column, "refuse")
    assert repr(spelling) in str(refused.value)
    assert repr(other) in str(refused.value)
    assert "--spellings join makes them one" in str(refused.value)
    assert joined(column, "join").tolist()[:4] == [spelling, spelling, "z", spelling]
    assert joined(pd.Series([other, *column.tolist(), other]), "join").tolist()[1:4] == [other, other, "z"]
    assert joined(column, "join", chosen=[other]).tolist()[:4] == [other, other, "z", other]
    assert joined(column, "keep") is column


@pytest.mark.parametrize(("spelling", "other"), OTHER)
def test_other_names_stay_and_so_does_the_column(spelling: str, other: str) -> None:
    column = pd.Series([spelling, other, spelling])
    assert joined(column, "refuse") is column
    assert joined(column, "join") is column


def test_a_category_keeps_its_order_and_its_other_levels() -> None:
    levels = ["high", "low", "Low", "none"]
    column = pd.Series(pd.Categorical(["low", "Low", "high", "low"], categories=levels, ordered=True))
    merged = joined(column, "join")
    assert merged.tolist() == ["low", "low", "high", "low"]
    assert list(merged.cat.categories) == ["high", "low", "none"]
    assert merged.cat.ordered
    without = column.cat.remove_categories("Low")
    assert joined(without, "refuse") is without  # a level without rows is no spelling


def test_a_spelling_of_the_formula_wins_whether_it_occurs_or_not_and_tabs_never_do() -> None:
    column = pd.Series(["Yes ", "Yes ", "No ", "ward\t", "ward\t"])
    assert joined(column, "refuse") is column
    assert joined(column, "join", chosen=["yes", "maybe"]).tolist() == ["yes", "yes", "No ", "ward", "ward"]
    levels = column.astype("category").cat.reorder_categories(["ward\t", "Yes ", "No "])
    assert list(joined(levels, "join", chosen=["yes"]).cat.categories) == ["ward", "yes", "No "]
    assert joined(pd.Series(["a\tb"]), "join").tolist() == ["a b"]


def test_ties_go_to_the_first_in_order_and_numbers_are_no_names() -> None:
    assert joined(pd.Series(["b", "B", "B ", "b"]), "join").tolist() == ["b"] * 4
    assert joined(pd.Series(["b", "B"]), "join").tolist() == ["B"] * 2
    for column in (pd.Series([1, 2]), pd.Series([1.0, np.nan]), pd.Series([[1], [1]]), pd.Series([True, "true"])):
        assert joined(column, "refuse") is column


def test_groups_of_two_clients_may_have_one_name() -> None:
    clients = np.array(["a", "a", "a", "b"], dtype=object)
    column = pd.Series(["P1", "p1", "P1", "p1"], name="patient")
    with pytest.raises(UserError, match="column 'patient' holds 'P1' and 'p1' of 'a', which differ"):
        joined_inside(clients, column, "refuse")
    assert joined_inside(clients, column, "join").tolist() == ["P1", "P1", "P1", "p1"]
    apart = column.where(column.index != 1, "P2")
    assert joined_inside(clients, apart, "refuse") is apart


def test_new_names_take_the_spelling_of_the_fit() -> None:
    names, known = np.array(["b", "A ", "zz"], dtype=object), ["a", "b"]
    words = r"column 'g' holds 'A ', which differs from 'a' of the fit in blanks.* or fit with .* \(--spellings join\)"
    with pytest.raises(UserError, match=words):
        as_known(names, known, "refuse", "column 'g'")
    assert as_known(names, known, "join", "column 'g'").tolist() == ["b", "a", "zz"]
    assert as_known(names, known, "keep", "column 'g'") is names


def test_what_is_said_of_columns() -> None:
    spellings = Spellings.from_choice("ward=join, odd = name=keep")
    assert (spellings["ward"], spellings["odd = name"], spellings["other"]) == ("join", "keep", "refuse")
    assert Spellings.from_choice({"ward": "join"}) == Spellings.from_choice("ward=join")
    assert Spellings.from_choice("keep")["anything"] == "keep"
    for wrong in ("joined", "", "ward=join,arm", {"ward": "yes"}, None):
        with pytest.raises(UserError, match="unknown value of spellings .*known: refuse, join, keep"):
            Spellings.from_choice(wrong)  # type: ignore[arg-type]
    assert alike(["b", "A", "a", "B", "c"]) == [["A", "a"], ["B", "b"]]
