"""Coefficients, their covariance and Wald tests, beside dense matrices, statsmodels and the F test of nested models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
import torch
from scipy import stats
from support.after_fit import FIXED, arms, dense

from hierfl import UserError, mixed_model
from hierfl.models.mixed_effects.after.hypotheses import hypotheses
from hierfl.models.mixed_effects.fitted_model import FittedMixedModel

DF = arms()
FORMULA = f"y ~ {FIXED} + (1 | site)"


@pytest.fixture(scope="module")
def fit() -> FittedMixedModel:
    return mixed_model(DF, FORMULA, draws=0)


def test_coefficients_and_their_covariance_are_those_of_dense_matrices_and_of_statsmodels(
    fit: FittedMixedModel,
) -> None:
    gls = dense(fit, DF, "arm * sex + x + arm:x")
    order = ["Intercept", "arm[b]", "arm[c]", "sex[m]", "arm[b]:sex[m]", "arm[c]:sex[m]", "x", "arm[b]:x", "arm[c]:x"]
    np.testing.assert_allclose(fit.params[order], gls.beta, rtol=1e-7)
    np.testing.assert_allclose(fit.vcov().loc[order, order], gls.covariance, rtol=1e-6, atol=1e-9)
    other = smf.mixedlm("y ~ arm * sex + x + arm:x", DF, groups="site").fit(reml=True)
    np.testing.assert_allclose(fit.params[order], other.fe_params, atol=1e-4)
    summary = fit.summary()
    np.testing.assert_allclose(np.sqrt(np.diag(fit.vcov())), summary.table.standard_error[: len(fit.params)])
    assert (fit.nobs, fit.aic, fit.bic) == (len(DF), summary.numbers["aic"], summary.numbers["bic"])
    assert fit.aic == pytest.approx(2 * (len(order) + 2) - 2 * fit.log_likelihood)
    table = fit.summary(0.8).table.set_index("effect")
    pd.testing.assert_frame_equal(fit.confint(0.8), table[["lower", "upper"]])


def test_a_wald_test_is_what_dense_matrices_say_and_its_f_that_of_nested_models(fit: FittedMixedModel) -> None:
    gls = dense(fit, DF, "arm * sex + x + arm:x")
    contrast = np.zeros((2, 9))
    contrast[0, 7] = contrast[1, 8] = 1
    test = fit.test("arm[b]:x = arm[c]:x = 0").iloc[0]
    assert test.statistic == pytest.approx(gls.f(contrast), rel=1e-6)
    smaller = mixed_model(DF, "y ~ arm * sex + x + (1 | site)", draws=0)
    nested = fit.compare(smaller, test="f").iloc[1]
    assert (test.statistic, test.p) == (pytest.approx(nested.statistic), pytest.approx(nested.p))
    assert test.reference == nested.reference
    row = fit.summary().table.set_index("effect").loc["sex[m]"]
    wald = fit.test("sex[m]").iloc[0]
    assert (wald.statistic, wald.df_residual) == (pytest.approx(row.statistic**2), pytest.approx(row.df))
    assert fit.test("2 * (sex[m] - 1) = 2 * -0.9").p.iloc[0] == pytest.approx(
        2 * stats.t.sf(abs(row.estimate - 0.1) / row.standard_error, row.df)
    )


@pytest.mark.cpu(4, "three fits, and derivatives of Kenward and Roger's of nine coefficients")
def test_kenward_and_rogers_test_and_covariance_are_those_of_the_fit(fit: FittedMixedModel) -> None:
    larger = fit.refit(kenward_roger=True)
    nested = larger.compare(mixed_model(DF, "y ~ arm * sex + x + (1 | site)", draws=0), test="f").iloc[1]
    test = larger.test("arm[b]:x, arm[c]:x").iloc[0]
    assert (test.statistic, test.p, test.reference) == (
        pytest.approx(nested.statistic), pytest.approx(nested.p), nested.reference,
    )  # fmt: skip
    assert (np.diag(larger.vcov()) > np.diag(fit.vcov())).all()
    np.testing.assert_allclose(np.sqrt(np.diag(larger.vcov())), larger.summary().table.standard_error[:9])


def test_other_responses_have_chi_squared_of_rows_and_f_of_clients() -> None:
    fit = mixed_model(DF, "k ~ arm + x + (1 | site)", family="poisson", draws=0)
    beta, covariance = fit.params.to_numpy(), fit.vcov().to_numpy()
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), fit.summary().table.standard_error[:4])
    test = fit.test("arm[b] = arm[c] = 0").iloc[0]
    size = beta[1:3] @ np.linalg.solve(covariance[1:3, 1:3], beta[1:3])
    assert (test.statistic, test.p) == (pytest.approx(size), pytest.approx(stats.chi2.sf(size, 2)))
    assert test.reference == "chi-squared(2)"
    row = fit.summary().table.set_index("effect").loc["Intercept"]
    test = fit.test("Intercept").iloc[0]
    assert (test.statistic, test.df_residual, test.p) == (
        pytest.approx(row.statistic**2), pytest.approx(row.df), pytest.approx(row.p),
    )  # fmt: skip
    # Without restricted estimates the curvature says it.
    ml = fit.refit(population="ml")
    np.testing.assert_allclose(np.sqrt(np.diag(ml.vcov())), ml.summary().table.standard_error[:4])


def test_answers_that_come_from_sums_read_no_row(fit: FittedMixedModel) -> None:
    federation = fit.run.fitted.federation
    lost = replace(federation, x=torch.full_like(federation.x, torch.nan), y=torch.full_like(federation.y, torch.nan))
    blind = FittedMixedModel(replace(fit.run, fitted=replace(fit.run.fitted, federation=lost)), FORMULA)
    for ask in (
        lambda f: f.vcov(), lambda f: f.confint(), lambda f: f.test("x = 1"), lambda f: f.anova(),
        lambda f: f.means("arm", by="sex"), lambda f: f.contrast("arm"), lambda f: f.icc(), lambda f: f.influence(),
    ):  # fmt: skip
        pd.testing.assert_frame_equal(ask(blind), ask(fit))
    pd.testing.assert_series_equal(blind.r2(), fit.r2())


NAMES = ["Intercept", "x", "x2", "arm[b]", "arm[b]:x", "bs(x, df=4)[0]", "odd name"]


@pytest.mark.parametrize(
    ("text", "rows", "against"),
    [
        ("x = x2 = 0", [{"x": 1}, {"x2": 1}], [0, 0]),
        ("x = arm[b]:x", [{"x": 1, "arm[b]:x": -1}], [0]),
        ("2*x + x2/4 - 1 = 3; bs(x, df=4)[0], -(`odd name` - x) = .5",
         [{"x": 2, "x2": 0.25}, {"bs(x, df=4)[0]": 1}, {"odd name": -1, "x": 1}], [4, 0, 0.5]),
        ("(x + x2) * 3 = 1e-1", [{"x": 3, "x2": 3}], [0.1]),
    ],
)  # fmt: skip
def test_hypotheses_are_read(text: str, rows: list[dict], against: list[float]) -> None:
    _, contrast, right_sides = hypotheses(text, NAMES)
    np.testing.assert_allclose(contrast, [[row.get(name, 0) for name in NAMES] for row in rows])
    np.testing.assert_allclose(right_sides, against)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x =", "cannot be read at its end"), ("x3 = 0", "cannot be read at 'x3 = 0'"), ("x x2", "at 'x2'"),
        ("x * x2", "not linear"), ("1 / x", "not linear"), ("x / 0", "divide by zero"), ("1 = 0", "no coefficient"),
        ("x - x", "no coefficient"), ("(" * 60 + "x", "cannot be read"), ("", "at its end"), (3, "are text"),
    ],
)  # fmt: skip
def test_hypotheses_that_say_nothing_are_refused_in_a_line(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        hypotheses(text, NAMES)
    assert "\n" not in str(error.value)


def test_what_has_no_test_is_refused(fit: FittedMixedModel) -> None:
    with pytest.raises(UserError, match="depend on each other"):
        fit.test("x = 0, 2 * x = 1")
    posterior = mixed_model(DF, "y ~ x + (1 | site)", population="bayes", draws=200)
    with pytest.raises(UserError, match="of a posterior"):
        posterior.test("x")
    np.testing.assert_allclose(np.sqrt(np.diag(posterior.vcov())), posterior.summary().table.standard_error[:2])


def test_a_coefficient_at_infinity_has_no_variance_and_no_part_in_a_test() -> None:
    df = DF.assign(w=((DF.arm == "b") | (DF.y > 1)).astype(int))
    fit = mixed_model(df, "w ~ arm + x + (1 | site)", family="binomial", draws=0)
    variances = pd.Series(np.diag(fit.vcov()), fit.params.index)
    assert variances.isna().tolist() == [False, True, False, False]
    beta, covariance = fit.params[["arm[c]", "x"]], fit.vcov().loc[["arm[c]", "x"], ["arm[c]", "x"]]
    expected = beta @ np.linalg.solve(covariance, beta)
    assert fit.test("arm[c] = x = 0").statistic.iloc[0] == pytest.approx(expected)
    with pytest.raises(UserError, match=r"'arm\[b\]' has no finite standard error"):
        fit.test("arm[b] = x = 0")


def test_models_whose_effects_share_names_and_not_columns_are_not_compared() -> None:
    df = DF.assign(n=DF.k + 1.0)
    small = mixed_model(df, "y ~ I((x + 3) * n) + (1 | site)", draws=0)
    for formula in ("y ~ I(x + 3 * n) + arm + (1 | site)", "y ~ I(x + 3 * n) + (1 + x | site)"):
        with pytest.raises(UserError, match="different effects of one name"):
            small.compare(mixed_model(df, formula, draws=0))
    assert len(small.compare(mixed_model(df, "y ~ I((x + 3) * n) + arm + (1 | site)", draws=0))) == 2


def test_a_name_that_is_a_sum_of_others_too_is_written_between_backquotes() -> None:
    names = ["x", "z", "x - z", "arm[b]", "arm[b]:x", "I(x - z)", "7"]
    for text in ("x - z = 0", "2 * x - z", "arm[b] = 7"):
        with pytest.raises(UserError, match="can be read without it, too: write it between backquotes"):
            hypotheses(text, names)
    assert hypotheses("`x - z`", names)[1].tolist() == [[0, 0, 1, 0, 0, 0, 0]]
    assert hypotheses("(x) - (z)", names)[1].tolist() == [[1, -1, 0, 0, 0, 0, 0]]
    assert hypotheses("arm[b]:x - arm[b] = I(x - z)", names)[1].tolist() == [[0, 0, 0, -1, 1, -1, 0]]
    assert hypotheses("x - z", names[2:])[1].tolist() == [[1, 0, 0, 0, 0]]


def test_kenward_and_rogers_degrees_of_freedom_are_those_of_every_answer() -> None:
    """Of one coefficient the F test is the summary's t squared, with the same degrees of freedom."""
    df = DF.assign(y=DF.y + (DF.x - 3) * (DF.site.str[1:].astype(int) % 5 - 2))
    fit = mixed_model(df, "y ~ arm + x + (1 + x | site)", draws=0, kenward_roger=True)
    table = fit.summary().table.set_index("effect")
    for name in fit.params.index:
        wald, row = fit.test(name).iloc[0], table.loc[name]
        assert (row.df, row.statistic**2, row.p) == pytest.approx((wald.df_residual, wald.statistic, wald.p), rel=1e-6)
    contrast = fit.contrast("arm", kind="trt.vs.ctrl")
    assert contrast.df.tolist() == pytest.approx(table.df[["arm[b]", "arm[c]"]].tolist(), rel=1e-6)
