"""Marginal means and contrasts beside matrix algebra, scipy's Dunnett test and multivariate t."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from patsy import build_design_matrices, dmatrix
from scipy import stats
from support.after_fit import arms, dense

from hierfl import UserError, mixed_model
from hierfl.models.mixed_effects.after.simultaneous import Together
from hierfl.models.mixed_effects.fitted_model import FittedMixedModel

DF = arms()
MODEL = "arm * sex + x + arm:x"


@pytest.fixture(scope="module")
def fit() -> FittedMixedModel:
    return mixed_model(DF, f"y ~ {MODEL} + (1 | site)", draws=0)


def rows(arm: str, sex: str, x: float) -> np.ndarray:
    """A row of patsy's design."""
    info = dmatrix(MODEL, DF).design_info
    (matrix,) = build_design_matrices([info], pd.DataFrame({"arm": [arm], "sex": [sex], "x": [x]}))
    return np.asarray(matrix)[0]


def test_means_average_cells_with_equal_weights_at_the_mean_of_numbers(fit: FittedMixedModel) -> None:
    gls, x = dense(fit, DF, MODEL), DF.x.mean()
    means = fit.means("arm")
    assert means.attrs["at"] == {"x": pytest.approx(x)}
    each = np.array([(rows(arm, "f", x) + rows(arm, "m", x)) / 2 for arm in "abc"])
    np.testing.assert_allclose(means["mean"], each @ gls.beta, rtol=1e-6)
    error = np.sqrt(np.diag(each @ gls.covariance @ each.T))
    np.testing.assert_allclose(means.standard_error, error, rtol=1e-6)
    np.testing.assert_allclose(means.upper, means["mean"] + stats.t.ppf(0.975, means.df) * error, rtol=1e-6)
    # They are not the arms' own means: cells differ in size.
    assert abs(means["mean"][0] - DF.y[DF.arm == "a"].mean()) > 0.02
    within = fit.means("arm", by="sex", at={"x": 2, "arm": ["c", "a"]}).set_index(["arm", "sex"])["mean"]
    for arm, sex in within.index:
        assert within[arm, sex] == pytest.approx(rows(arm, sex, 2) @ gls.beta, rel=1e-6)
    assert len(within) == 4
    slope = fit.means("x", at={"x": [0, 1]})["mean"].diff()[1]
    each = np.mean([rows(arm, sex, 1) - rows(arm, sex, 0) for arm in "abc" for sex in "fm"], 0)
    assert slope == pytest.approx(each @ gls.beta, rel=1e-6)


def test_contrasts_have_tukeys_intervals_and_the_tests_degrees_of_freedom(fit: FittedMixedModel) -> None:
    contrasts = fit.contrast("arm", by="sex").set_index(["contrast", "sex"])
    means = fit.means("arm", by="sex").set_index(["arm", "sex"])["mean"]
    row = contrasts.loc["b - c", "m"]
    assert row.estimate == pytest.approx(means["b", "m"] - means["c", "m"])
    x = DF.x.mean()
    text = f"arm[b] + arm[b]:sex[m] + {x} * arm[b]:x = arm[c] + arm[c]:sex[m] + {x} * arm[c]:x"
    test = fit.test(text).iloc[0]
    assert (test.statistic, test.df_residual) == (pytest.approx(row.statistic**2), pytest.approx(row.df))
    assert row.p == pytest.approx(stats.studentized_range.sf(abs(row.statistic) * np.sqrt(2), 3, row.df))
    reach = stats.studentized_range.ppf(0.95, 3, row.df) / np.sqrt(2) * row.standard_error
    assert row.upper == pytest.approx(row.estimate + reach)
    alone = fit.contrast("arm", by="sex", adjust="none").set_index(["contrast", "sex"]).loc["b - c", "m"]
    assert alone.p == pytest.approx(test.p)
    bonferroni = fit.contrast("arm", by="sex", adjust="bonferroni").set_index(["contrast", "sex"]).loc["b - c", "m"]
    assert bonferroni.p == pytest.approx(min(1, 3 * test.p))
    control = fit.contrast("arm", kind="trt.vs.ctrl")
    assert control.contrast.tolist() == ["b - a", "c - a"]


def test_treatments_beside_a_control_are_scipys_dunnett_test() -> None:
    rng = np.random.default_rng(5)
    groups = [rng.normal(k / 3, 1, n) for k, n in enumerate((9, 5, 7, 6))]
    n, df = np.array([len(g) for g in groups]), sum(map(len, groups)) - 4
    s = sum(((g - g.mean()) ** 2).sum() for g in groups) / df
    covariance = s * (np.diag(1 / n[1:]) + 1 / n[0])
    away = np.array([g.mean() - groups[0].mean() for g in groups[1:]])
    together = Together("mvt", covariance, np.full(3, float(df)))
    referee = stats.dunnett(*groups[1:], control=groups[0], rng=np.random.default_rng(1))
    np.testing.assert_allclose(together.p(away / np.sqrt(np.diag(covariance))), referee.pvalue, atol=5e-4)
    critical = together.critical(0.95)[0]
    limits = referee.confidence_interval(0.95)
    np.testing.assert_allclose(away + critical * np.sqrt(np.diag(covariance)), limits.high, atol=5e-3)


@pytest.mark.parametrize("df", [7.0, np.inf])
def test_the_multivariate_ts_largest_is_exact_where_it_is_known(df: float) -> None:
    """All pairs of means of equal size are Tukey's, of singular correlations; equal contrasts are one."""
    pairs = np.array([[1, -1, 0, 0], [1, 0, -1, 0], [1, 0, 0, -1], [0, 1, -1, 0], [0, 1, 0, -1], [0, 0, 1, -1.0]])
    mvt = Together("mvt", pairs @ pairs.T, np.full(6, df))
    tukey = Together("tukey", pairs @ pairs.T, np.full(6, df), means=4)
    np.testing.assert_allclose(mvt.critical(0.95), tukey.critical(0.95), rtol=2e-4)
    np.testing.assert_allclose(mvt.p(np.arange(6) / 2), tukey.p(np.arange(6) / 2), atol=3e-4)
    same = Together("mvt", np.ones((3, 3)), np.full(3, df))
    np.testing.assert_allclose(same.critical(0.9), stats.t.ppf(0.95, df), rtol=1e-9)
    apart = Together("mvt", np.eye(2), np.full(2, np.inf))
    np.testing.assert_allclose(apart.critical(0.95), stats.norm.ppf((1 + np.sqrt(0.95)) / 2), rtol=1e-4)


def test_a_responses_mean_is_that_of_zero_effects_and_differences_are_ratios() -> None:
    fit = mixed_model(DF, "k ~ arm + offset(log(x + 5)) + (1 | site)", family="poisson", draws=0)
    link, response = fit.means("arm"), fit.means("arm", scale="response")
    beta = fit.params
    np.testing.assert_allclose(link["mean"][1], beta["Intercept"] + beta["arm[b]"] + np.log(DF.x.mean() + 5))
    for name in ("mean", "lower", "upper"):
        np.testing.assert_allclose(response[name], np.exp(link[name]))
    np.testing.assert_allclose(response.standard_error, response["mean"] * link.standard_error)
    ratio, gap = fit.contrast("arm", scale="response"), fit.contrast("arm")
    assert ratio.contrast[0] == "a / b"
    np.testing.assert_allclose(ratio.ratio, np.exp(gap.estimate))
    np.testing.assert_allclose(ratio[["p", "upper"]], np.column_stack([gap.p, np.exp(gap.upper)]))
    assert np.isinf(gap.df).all()
    for x in (-5.0, -6.0):  # the logarithm's argument is 0, or negative: NaN ended in a distribution's ValueError
        with pytest.raises(UserError, match="the offset is not finite in 2 of 2 rows: is an exposure 0 or negative"):
            fit.predict(DF.head(2).assign(x=x))
    # A Weibull's mean falls where hazards rise.
    times = mixed_model(DF, "t ~ arm + (1 | site)", family="weibull", event="seen", draws=0)
    late = times.means("arm", scale="response")
    assert (late.lower < late["mean"]).all()
    assert (late["mean"] < late.upper).all()
    assert late["mean"][0] > late["mean"][1]


def test_a_posteriors_means_are_of_its_draws() -> None:
    fit = mixed_model(DF, "y ~ arm + (1 | site)", population="bayes", draws=400)
    row = fit.means("arm").set_index("arm").loc["b"]
    draws = fit.posterior(observed=False).posterior.effects
    sums = (draws.sel(effect="Intercept") + draws.sel(effect="arm[b]")).values.ravel()
    assert row["mean"] == pytest.approx(sums.mean())
    assert (row.lower, row.upper) == (
        pytest.approx(np.quantile(sums, 0.025)),
        pytest.approx(np.quantile(sums, 0.975)),
    )
    with pytest.raises(UserError, match="each by itself"):
        fit.contrast("arm", adjust="tukey")


def test_an_empty_cell_leaves_its_means_unknown_and_others_known() -> None:
    df = DF[~((DF.arm == "c") & (DF.sex == "m"))]
    fit = mixed_model(df, "y ~ arm * sex + (1 | site)", draws=0)
    assert fit.means("arm")["mean"].isna().tolist() == [False, False, True]
    cells = fit.means("arm", by="sex").set_index(["arm", "sex"])["mean"]
    assert cells.isna().sum() == 1
    assert np.isnan(cells["c", "m"])
    contrasts = fit.contrast("arm", by="sex").set_index(["contrast", "sex"])
    assert contrasts.estimate.isna().tolist() == [False, False, False, False, True, True]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda f: f.means("x"), "'x' is a number: at="),
        (lambda f: f.means("dose"), "unknown predictor 'dose'; known: arm, sex, x"),
        (lambda f: f.means("arm", at={"arm": ["a", "z"]}), "unknown level of 'arm' 'z'"),
        (lambda f: f.means("arm", at={"x": "high"}), "'x' is a number, which 'high' is not"),
        (lambda f: f.means("arm", by="arm"), "named once"),
        (lambda f: f.means("arm", scale="log"), "unknown scale 'log'"),
        (lambda f: f.contrast("arm", kind="all"), "unknown kind "),
        (lambda f: f.contrast("arm", at={"arm": "a"}), "one level"),
        (lambda f: f.contrast("arm", kind="trt.vs.ctrl", adjust="tukey"), "all pairs"),
        (lambda f: f.means("arm", level=95), "between 0 and 1"),
        (lambda f: f.emmeans("arm"), "means\\(of\\)"),
    ],
)
def test_what_is_not_there_is_refused_in_a_line(fit: FittedMixedModel, call, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=words):
        call(fit)
