"""What a table or a call has that no fit can use is one line with a remedy; what a fit leaves out is in its summary."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from hierfl.errors import UserError
from hierfl.models.mixed_effects.mixed_model import FittedMixedModel, mixed_model


def table(clients: int = 6, rows: int = 8) -> pd.DataFrame:
    """Rows of clients a, b, ... with responses of several kinds."""
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"site": np.repeat(list("abcdefgh")[:clients], rows), "x": rng.normal(size=clients * rows)})
    df["y"] = df.x + rng.normal(size=len(df)) + np.repeat(rng.normal(size=clients), rows)
    return df.assign(n=rng.integers(5, 9, len(df)), s=rng.integers(0, 5, len(df)), w=1.0, arm="drug", b=df.x > 0)


def fitted(formula: str = "y ~ x + (1 | site)", df: pd.DataFrame | None = None, **how: Any) -> FittedMixedModel:
    return mixed_model(table() if df is None else df, formula, draws=0, **how)


DF = table()
REFUSED: list[tuple[str, dict[str, Any], pd.DataFrame, str]] = [
    ("y ~ x + (1 | site)", {}, DF.assign(x=DF.x.where(DF.x < 1)), "missing values: --na drop, or na='drop' in Python"),
    ("y ~ x + (1 | site)", {"na": "drop"}, DF.assign(site=DF.site.where(DF.x < 1)), r"df.dropna\(subset=\['site'\]\)"),
    ("x + (1 | site)", {}, DF, r"has no response: write y ~ x \+ \(1 \| site\)"),
    ("y ~ x + (1 | site)", {"weights": DF.w}, DF, "weights is the name of a column, not Series"),
    (
        "y ~ x + (1 | site)",
        {"weights": "w"},
        DF.assign(w=DF.index > 1).astype({"w": float}),
        "in 2 of 48 rows, such as 0",
    ),
    (
        "s ~ x + (1 | site)",
        {"family": "poisson"},
        DF.assign(s=DF.s - 1),
        "whole number from 0, and .* is not in .* of 48 rows, such",
    ),
    (
        "p(q, n) ~ x + (1 | site)",
        {"family": "binomial"},
        DF.assign(q=DF.s / DF.n),
        "must be .* integer numbers: of shares, multiply by the trials",
    ),
    ("I(s / n) ~ x + (1 | site)", {"family": "binomial"}, DF, r"of shares write p\(successes, trials\)"),
    ("s / n ~ x + (1 | site)", {"family": "binomial"}, DF, r"s / n is a share of 'n': write 'p\(s, n\) ~ x"),
    ("y ~ 1/x + (1 | site)", {}, DF, r"write 'y ~ I\(1/x\) \+ \(1 \| site\)'"),
    ("y ~ x * arm + (1 | site)", {}, DF, "'arm' has one level, 'drug', in all rows"),
    ("y ~ x + (1 + arm | site)", {}, DF, "'arm' has one level, 'drug', in all rows"),
]


@pytest.mark.parametrize(("formula", "how", "df", "line"), REFUSED)
def test_what_no_fit_can_use_is_a_line_with_a_remedy(
    formula: str, how: dict[str, Any], df: pd.DataFrame, line: str
) -> None:
    with pytest.raises(UserError, match=line):
        fitted(formula, df, **how)


@pytest.mark.parametrize("effect", ["arm", "C(arm)"])
def test_a_category_of_one_level_is_dropped_and_named(effect: str) -> None:
    summary, wanted = fitted(f"y ~ x + {effect} + (1 | site)").summary(), fitted().summary()
    assert f"{effect!r} has one level in all rows, and was dropped" in summary.notes
    np.testing.assert_array_equal(summary.table["estimate"], wanted.table["estimate"])


@pytest.mark.parametrize("code", [-999, 99])
def test_a_number_far_from_all_others_is_noted(code: int) -> None:
    coded = DF.assign(x=DF.x.where(DF.index > 2, code))
    (note,) = [line for line in fitted(df=coded).summary().notes if "'x'" in line]
    assert f"holds {code} in 3 rows" in note
    assert f"hierfl.read_table(df, na=['{code}']) if it is a missing value" in note
    assert not [line for line in fitted().summary().notes if "'x'" in line]


def test_an_estimate_at_its_bound_is_the_bound() -> None:
    flat = DF.assign(y=np.tile(np.arange(8.0), 6))  # every client has the same responses
    table = fitted("y ~ 1 + (1 | site)", flat).summary().table.set_index("effect")
    assert table.note["sd(Intercept)"] == "at its lower bound"
    assert table.estimate["sd(Intercept)"] == 0


def test_a_standard_deviation_that_the_likelihood_does_not_know_is_not_at_its_bound() -> None:
    """With a coefficient for each client REML's criterion is the same for every spread of their intercepts."""
    table = fitted("y ~ site + (1 | site)").summary().table.set_index("effect")
    assert table.note["sd(Intercept)"] == "not identified"
    assert np.isnan(table.standard_error["sd(Intercept)"])


@pytest.mark.parametrize(("n", "line"), [("5", "'n' holds no numbers"), (None, r"df.dropna\(subset=\['n'\]\)")])
def test_trials_to_predict_are_numbers(n: object, line: str) -> None:
    model = fitted("p(s, n) ~ x + (1 | site)", family="binomial")
    with pytest.raises(UserError, match=line):
        model.predict(DF.head(2).assign(n=pd.Series([n, n], dtype=object)))


@pytest.mark.parametrize(("word", "way"), [("yes", "== 'yes'"), ("1", r"astype\(float\)"), ("False", "== 'True'")])
def test_text_in_place_of_numbers_has_a_remedy_that_works(word: str, way: str) -> None:
    with pytest.raises(UserError, match=way):
        fitted("y ~ b + (1 | site)").predict(DF.head(2).assign(b=word))


def test_compare_takes_a_fitted_model() -> None:
    model: Any = fitted()
    with pytest.raises(UserError, match="another fitted mixed model, not str"):
        model.compare("y ~ 1 + (1 | site)")
    with pytest.raises(UserError, match="called as compare"):
        model.compare()
