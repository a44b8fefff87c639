"""R's spellings: each formula is read as the one beside it."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.tables import table

from hierfl.data.formula.federate import from_formula
from hierfl.data.formula.gate import evaluate, parse
from hierfl.errors import UserError

#: R's terms.formula says the same of each pair
SAME = {
    # a sign in a function's arguments is arithmetic
    "y ~ (I(x - 1) + z | site)": "y ~ (1 + I(x-1) + z | site)",
    "y ~ (1 + I(x - 1) + z | site)": "y ~ (1 + I(x-1) + z | site)",
    "y ~ (log(x + 5 - 1) + z | site)": "y ~ (1 + log(x + 5-1) + z | site)",
    "y ~ (where(x > 3, x - 1, 0) + z | site)": "y ~ (1 + where(x > 3, x-1, 0) + z | site)",
    "y ~ (I(x - 1) - 1 | site)": "y ~ (0 + I(x-1) | site)",
    # 0 and 1: the last one counts, wherever it is
    "y ~ (x - 1 + I(z) | site)": "y ~ (0 + x + I(z) | site)",
    "y ~ (-1 + x | site)": "y ~ (0 + x | site)",
    "y ~ (x + -1 | site)": "y ~ (0 + x | site)",
    "y ~ (x + 0 | site)": "y ~ (0 + x | site)",
    "y ~ (1 + x - 1 | site)": "y ~ (0 + x | site)",
    "y ~ (x - 1 + 1 | site)": "y ~ (1 + x | site)",
    "y ~ (-1 + x || site)": "y ~ (0 + x | site)",
    "y ~ (x + -1 || site)": "y ~ (0 + x | site)",
    # a first power is the sum itself
    "y ~ (x + z)^1 + log(z)^1 + (1 | site)": "y ~ x + z + log(z) + (1 | site)",
    # the parts of an interaction have no order
    "y ~ x * z - z:x + (1 | site)": "y ~ x + z + (1 | site)",
    "y ~ (x + z + h)**2 - h * x - z:x + (1 | site)": "y ~ z + z:h + (1 | site)",
    "y ~ x * z + g * h - (x:z + h:g) + (1 | site)": "y ~ x + z + g + h + (1 | site)",
    "y ~ x * I(z - 1) - I(z - 1):x - 1 + (1 | site)": "y ~ 0 + x + I(z - 1) + (1 | site)",
    "y ~ x * {z} - {z}:x + (1 | site)": "y ~ x + {z} + (1 | site)",
    "y ~ (x * z - z:x | site)": "y ~ (x + z | site)",
    "y ~ (x * z - z:x || site)": "y ~ (1 | site) + (0 + x | site) + (0 + z | site)",
    # an interaction before an effect that it contains
    "y ~ g:h + g + (1 | site)": "y ~ g + g:h + (1 | site)",
    "y ~ g:h + h + (1 | site)": "y ~ h + g:h + (1 | site)",
    "y ~ g / h + h / g + (1 | site)": "y ~ g + h + g:h + (1 | site)",
    "y ~ 0 + x:g:h + x:g + (1 | site)": "y ~ 0 + x:g + x:g:h + (1 | site)",
    # calls inside calls, beside other arguments
    "y ~ scale(exp(x)) + scale(z) + {exp(x) * 2} + {z * 2} + (1 | site)":
        "y ~ (scale(exp(x)) + scale(z) + {exp(x) * 2} + {z * 2}) + (1 | site)",
    "y ~ (g + z) * (x + poly(z, 2)) + (1 | site)":
        "y ~ g + z + x + poly(z, 2) + g:x + g:poly(z, 2) + z:x + z:poly(z, 2) + (1 | site)",
    "y ~ ((x * z - z:x) || site)": "y ~ (1 | site) + (0 + x | site) + (0 + z | site)",
}  # fmt: skip


def _terms(text: str) -> tuple[list[str], list[list[str]]]:
    """The names of the fixed effects, and those of each random term."""
    formula = parse(text)
    random = [list(evaluate(parse(f"1 + {term.effects}"), table()).group.terms) for term in formula.random]
    return list(evaluate(formula, table()).common.terms), random


@pytest.mark.parametrize("formula", SAME)
def test_it_is_read_as_r_reads_it(formula: str) -> None:
    assert _terms(formula) == _terms(SAME[formula])


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        ("y ~ x - z + (1 | site)", "'-' takes z away, which is not among the effects before it"),
        ("y ~ x - z + z + (1 | site)", "'-' takes z away"),
        ("y ~ (x - z:h | site)", "'-' takes z:h away"),
        ("y ~ (x - z || site)", "'-' takes z away"),
        ("y ~ (0 + x * z) - z:x + (1 | site)", "which effects '( 0 + x * z )' has is not understood beside a '-'"),
        ("y ~ (x - 1:z | site)", "1 is no factor of an effect"),
        ("y ~ (x - 1 * z | site)", "no effect that could be taken away"),
    ],
)
def test_what_is_not_read_is_one_line(formula: str, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)) as told:
        evaluate(parse(formula), table())
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("won", "lost"),
    [
        ("k", "n - k"), ("k", "m"), ("k * 2", "n - k * 2"), ("k + j", "n - k + j"), ("k - j", "n - k - j"),
        ("k + j", "n - (k + j)"), ("k", "m - 1"), ("(k + j)", "n - (k + j)"), ("k > 1", "m"), ("k > 1", "m > 2"),
        ("k > 1", "1 - k > 1"), ("a", "b"), ("minimum(k - 1, j)", "n - minimum(k - 1, j)"),
    ],
)  # fmt: skip
def test_trials_are_both_columns_added(won: str, lost: str) -> None:
    rng = np.random.default_rng(1)
    df = table().assign(**{name: rng.integers(2, 5, 60) for name in "kjm"}, n=rng.integers(20, 30, 60))
    df = df.assign(a=df.k > 3, b=df.j > 2)
    names = {"minimum": np.minimum, **{name: df[name].to_numpy() for name in "kjmnab"}}
    successes, failures = (np.asarray(eval(text, names), dtype=float) for text in (won, lost))
    read = evaluate(parse(f"cbind({won}, {lost}) ~ x + (1 | site)"), df).response.design_matrix
    np.testing.assert_array_equal(read, np.column_stack([successes, successes + failures]))


@pytest.mark.parametrize(
    ("effects", "reads"),
    [
        ("0 + bs(x, df=4) + (1 | site)", False), ("bs(x, df=4) - 1 + (1 | site)", False),
        ("0 + offset(z) + ns(x, knots=c(0)) + (1 | site)", False), ("0 + g:z + cr(x, df=4) + (1 | site)", False),
        ("1 + (bs(x, df=4) || site)", False), ("1 + (1 | site) + (0 + cr(x, knots=c(0)) | site)", False),
        ("bs(x, df=4) + (1 + bs(x, df=4) | site)", True), ("0 + g + bs(x, df=4) + (1 | site)", True),
        ("1 + (0 + g + bs(x, df=4) | site)", True), ("0 + bs(x, df=4, center=False) + (1 | site)", True),
        ("0 + poly(x, 2) + (1 | site)", True),
    ],
)  # fmt: skip
def test_curves_are_those_of_r_or_are_refused(effects: str, reads: bool) -> None:
    """R's bs and ns lack one column, for the intercept; beside a factor's levels they need none."""
    if reads:
        from_formula(table(), f"y ~ {effects}")
        return
    with pytest.raises(UserError, match="R's curves beside an intercept in the same term") as told:
        from_formula(table(), f"y ~ {effects}")
    assert "\n" not in str(told.value)
