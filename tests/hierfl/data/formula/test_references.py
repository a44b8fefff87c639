"""Which level of a category a design compares the others with."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hierfl.data.formula.federate import from_formula
from hierfl.data.formula.references import reference_levels, reference_line, references_of


@pytest.mark.parametrize(
    ("right", "references"),
    [
        ("arm + age", {"arm": "A"}),
        ("T(arm, ref='B') * sex", {"arm": "B", "sex": "f"}),
        ("C(arm, levels=['C', 'A', 'B'])", {"arm": "C"}),
        ("C(k)", {"k": "1"}),
        ("0 + arm + sex", {"sex": "f"}),
        ("S(arm)", {}),
        ("age", {}),
    ],
)
def test_the_level_without_a_column(right: str, references: dict[str, str]) -> None:
    rng = np.random.default_rng(0)
    words = {"site": list("stuvwx"), "arm": list("ABC"), "sex": ["f", "m"], "k": [1, 2, 3]}
    df = pd.DataFrame({name: rng.choice(values, 60) for name, values in words.items()})
    df = df.assign(age=rng.normal(size=60), y=rng.normal(size=60))
    federation, design = from_formula(df, f"y ~ {right} + (1 | site)")
    assert references_of(federation.about, design.fixed) == references


def test_a_level_whose_column_was_dropped_is_no_reference() -> None:
    levels = {"arm": ("A", "B", "C")}
    assert reference_levels(["Intercept", "arm[B]"], levels) == {}
    line = "'arm[C]' is the sum of others, and was dropped"
    assert reference_levels(["arm[A]", "arm[B]"], levels, [line]) == {}


def test_in_words() -> None:
    assert reference_line({}) == ""
    assert reference_line({"arm": "A"}) == "arm: reference level A"
    assert reference_line({"arm": "A", "sex": "f"}) == "reference levels: arm A, sex f"
