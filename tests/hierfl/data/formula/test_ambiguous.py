"""Effects that could be read in two ways are refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from support.after_fit import arms

from hierfl import UserError, mixed_model
from hierfl.data.formula.federate import from_formula

DF = arms().assign(b=lambda d: d.x > 3, n=lambda d: d.k + 1.0)


@pytest.mark.parametrize(
    "formula",
    [
        "y ~ x:b + (1 | site)", "y ~ b + x:b + (1 | site)", "y ~ b + arm:b + (1 | site)", "y ~ 0 + b + (1 | site)",
        "y ~ 0 + b + arm + (1 | site)", "y ~ x + (0 + b | site)", "y ~ x + (1 + b || site)", "y ~ x + (1 + x:b | site)",
        "y ~ x + (1 | site) + (0 + b | site)",
    ],
)  # fmt: skip
def test_truth_values_of_which_r_makes_another_model_are_refused(formula: str) -> None:
    for column in (DF.b, DF.b.astype("boolean"), DF.b.astype(object)):
        with pytest.raises(UserError, match=r"'b' holds True and False, .*write factor\(b\)"):
            from_formula(DF.assign(b=column), formula)
    from_formula(DF, formula.replace("b", "factor(b)"))
    from_formula(DF.assign(b=DF.b.astype(int)), formula)


@pytest.mark.parametrize("formula", ["x * b", "arm * b", "x + x:b", "0 + arm + b", "arm + arm:b"])
def test_the_others_have_the_columns_of_the_factor(formula: str) -> None:
    """The two designs span the same columns."""
    texts = formula, formula.replace("b", "factor(b)")
    first, second = (from_formula(DF, f"y ~ {text} + (1 | site)") for text in texts)
    x, z = (pair[0].x[:, : len(pair[1].fixed)].numpy() for pair in (first, second))
    assert x.shape == z.shape
    assert np.linalg.matrix_rank(np.hstack([x, z])) == x.shape[1]


def test_means_and_tests_of_terms_need_a_category() -> None:
    fit = mixed_model(DF, "y ~ arm * b + (1 | site)", draws=0)
    for ask in (lambda f: f.means("arm"), lambda f: f.contrast("arm"), lambda f: f.anova()):
        with pytest.raises(UserError, match=r"'b' holds True and False.*write factor\(b\)"):
            ask(fit)
    category = mixed_model(DF, "y ~ arm * factor(b) + (1 | site)", draws=0)
    assert category.log_likelihood == pytest.approx(fit.log_likelihood, abs=1e-8)
    text = mixed_model(DF.assign(b=DF.b.astype(str)), "y ~ arm * b + (1 | site)", draws=0)
    pd.testing.assert_frame_equal(category.means("b").drop(columns="b"), text.means("b").drop(columns="b"))
    np.testing.assert_allclose(category.anova().statistic, text.anova().statistic)


@pytest.mark.parametrize(
    "formula",
    [
        "y ~ I((x + 3) * n) + I(x + 3 * n) + (1 | site)", "y ~ I((x + 3) * n) + (1 + I(x + 3 * n) | site)",
        "y ~ x + (1 + I((x + 3) * n) | site) + (0 + I(x + 3 * n) | site)",
        "y ~ x + I((x + 3) * n):arm + (1 + I(x + 3 * n) | site)",
        "y ~ I(log(n) - (n - x)) + (1 + I((log(n) - n) - x) | site)",
    ],
)  # fmt: skip
def test_two_expressions_of_one_name_are_refused(formula: str) -> None:
    with pytest.raises(UserError, match="two effects are both called"):
        from_formula(DF, formula)


def test_one_expression_may_stand_twice() -> None:
    from_formula(DF, "y ~ I((x + 3) * n) + scale(x) + (1 + I((x + 3) * n) + scale(x) | site)")
