"""Shares of variance by hand, influence beside fits without a client, and formulas that are changed."""

from __future__ import annotations

import copy
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from support.after_fit import arms, dense
from support.paths import ROOT

from hierfl import UserError, mixed_model
from hierfl.models.mixed_effects.after.updated import updated
from hierfl.models.mixed_effects.after.variance import CONSTANT, OF_COUNTS
from hierfl.models.mixed_effects.fitted_model import FittedMixedModel
from hierfl.responses.registry import RESPONSES

DF = arms()


def test_shares_of_variance_are_the_standard_deviations_and_the_predictors_spread() -> None:
    fit = mixed_model(DF, "y ~ arm + x + (1 | site)", draws=0)
    sd, components = fit.summary().table.set_index("effect").estimate, fit.icc()
    between, within = sd["sd(Intercept)"] ** 2, sd["sd(residual)"] ** 2
    assert components.icc["site"] == pytest.approx(between / (between + within))
    fixed = fit.fitted(level="population").var()
    assert components.variance["fixed effects"] == pytest.approx(fixed)
    total = fixed + between + within
    expected = {"marginal": fixed / total, "conditional": (fixed + between) / total}
    assert fit.r2().to_dict() == pytest.approx(expected)
    assert components.share.sum() == pytest.approx(1)


def test_a_slopes_variance_is_its_mean_over_rows_from_sums_or_rows() -> None:
    fit = mixed_model(DF, "y ~ x + (1 + x | site)", draws=0)
    sd = fit.summary().table.set_index("effect").estimate
    a, b = sd["sd(Intercept)"], sd["sd(x)"]
    each = a**2 + 2 * sd["corr(Intercept, x)"] * a * b * DF.x + b**2 * DF.x**2
    assert fit.icc().variance["site"] == pytest.approx(each.mean())
    # The same columns, of which the design does not say what lies beside each other.
    method = fit.run.fitted.method
    blind = copy.copy(method)
    blind.network = replace(method.network, fixed_correlation=())
    rows = FittedMixedModel(replace(fit.run, fitted=replace(fit.run.fitted, method=blind)), fit.formula)
    pd.testing.assert_frame_equal(rows.icc(), fit.icc())


def test_other_responses_have_the_variance_of_an_observation_on_their_scale() -> None:
    poisson = mixed_model(DF, "k ~ x + offset(log(x + 5)) + (1 | site)", family="poisson", draws=0)
    variances = poisson.icc().variance
    eta = poisson.params["Intercept"] + poisson.params["x"] * DF.x + np.log(DF.x + 5)
    rate = np.exp(eta.mean() + (variances["site"] + variances["fixed effects"]) / 2)
    assert variances["residual"] == pytest.approx(np.log(1 + 1 / rate))
    binary = mixed_model(DF.assign(w=(DF.y > 1).astype(int)), "w ~ x + (1 | site)", family="binomial", draws=0)
    sd = binary.summary().table.set_index("effect").estimate["sd(Intercept)"]
    assert binary.icc().icc["site"] == pytest.approx(sd**2 / (sd**2 + np.pi**2 / 3))
    assert binary.r2()["marginal"] < binary.r2()["conditional"] < 1
    zeros = mixed_model(DF, "k ~ x + (1 | site)", family="zero-inflated-poisson", draws=0)
    with pytest.raises(UserError, match="zero-inflated-poisson response has no variance"):
        zeros.icc()


def test_every_response_has_a_variance_or_is_in_the_list_of_those_that_have_none() -> None:
    text = (ROOT / "docs/mixed-after.md").read_text()
    refused = re.findall(r"`([a-z-]+)`", text.partition("refused for the responses")[2].partition(".")[0])
    assert {*CONSTANT, *OF_COUNTS, *refused} == set(RESPONSES)
    assert len(refused) + len(CONSTANT) + len(OF_COUNTS) == len(RESPONSES)


@pytest.mark.parametrize("family", ["student-t", "nbinom1", "generalised-poisson", "binomial-probit", "cox", "beta"])
def test_newer_responses_by_hand(family: str) -> None:
    """As insight::get_variance_distribution has them where it has, with lambda of this fit."""
    df = DF.assign(b=(DF.y > 1).astype(int), t=np.exp(-DF.y / 4), share=1 / (1 + np.exp(-DF.y / 9)))[::3]
    response = {"student-t": "y", "binomial-probit": "b", "cox": "t", "beta": "share"}.get(family, "k")
    more = {"student-t": {"degrees_of_freedom": "5"}, "cox": {"intervals": "2"}}.get(family, {})
    fit = mixed_model(df, f"{response} ~ x + (1 | site)", family=family, draws=0, **more)  # type: ignore[arg-type]
    if family == "beta":
        with pytest.raises(UserError, match="a beta response has no variance of an observation"):
            fit.r2()
        return
    own, variances = fit.summary().table.set_index("effect").estimate, fit.icc().variance
    eta = fit.params.sum() - fit.params["x"] * (1 - df.x.mean()) + (variances["site"] + variances["fixed effects"]) / 2
    expected = {
        "binomial-probit": lambda: 1.0, "cox": lambda: np.pi**2 / 6, "student-t": lambda: own["scale"] ** 2 * 5 / 3,
    }.get(family, lambda: np.log(1 + (1 + own["dispersion"]) / np.exp(eta)))  # fmt: skip
    assert variances["residual"] == pytest.approx(expected(), rel=1e-6)
    assert fit.r2()["marginal"] < fit.r2()["conditional"] < 1


def test_precision_weights_leave_no_one_variance_of_a_residual() -> None:
    """sigma^2 is that of a weight of 1: with weights a hundred times as large it is, too, and the ICC another."""
    fit = mixed_model(DF[::3].assign(w=2.0), "y ~ x + (1 | site)", precision_weights="w", draws=0)
    for answer in (fit.icc, fit.r2):
        with pytest.raises(UserError, match="variances of their own by precision weights"):
            answer()


def test_a_students_t_without_a_variance_says_so() -> None:
    fit = mixed_model(DF[::3], "y ~ x + (1 | site)", family="student-t", degrees_of_freedom="2", draws=0)
    with pytest.raises(UserError, match="with 2 degrees of freedom has no variance"):
        fit.icc()


def test_the_estimates_without_a_client_are_exact_given_the_variances() -> None:
    fit = mixed_model(DF, "y ~ arm * sex + arm:x + x + (1 | site)", draws=0)
    influence = fit.influence().set_index("client")
    whole = dense(fit, DF, "arm * sex + x + arm:x")
    names = ["Intercept", "arm[b]", "arm[c]", "sex[m]", "arm[b]:sex[m]", "arm[c]:sex[m]", "x", "arm[b]:x", "arm[c]:x"]
    for client in ("s00", "s07"):
        without = dense(fit, DF[DF.site != client], "arm * sex + x + arm:x")
        np.testing.assert_allclose(influence.loc[client, names].astype(float), without.beta, rtol=1e-5, atol=1e-7)
        away = without.beta - whole.beta
        cook = away @ np.linalg.solve(whole.covariance, away) / len(away)
        assert influence.cooks_distance[client] == pytest.approx(cook, rel=1e-4)
    assert influence.rows.tolist() == [25] * 12


@pytest.mark.cpu(4, "two fits of counts")
def test_a_step_without_a_client_is_near_the_fit_without_it() -> None:
    df = DF.assign(k=np.where(DF.site == "s03", DF.k + 6 * (DF.x > 3), DF.k))
    fit = mixed_model(df, "k ~ x + (1 | site)", family="poisson", draws=0)
    influence = fit.influence().set_index("client")
    assert influence.cooks_distance.idxmax() == "s03"
    left = fit.refit(df=df[df.site != "s03"])
    moved, by_step = left.params - fit.params, influence.loc["s03", ["Intercept", "x"]].astype(float) - fit.params
    assert by_step["x"] == pytest.approx(moved["x"], rel=0.35)
    assert abs(moved["x"]) > 2 * np.sqrt(fit.vcov().loc["x", "x"])


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        ("~ . - x", "y ~ arm * x + I(x - 1) + (1 + x | site) - x"),
        ("~ . + z - (1+x | site) + (1 | site)", "y ~ arm * x + I(x - 1) + z + (1 | site)"),
        ("log(y) ~ arm + (1 | site)", "log(y) ~ arm + (1 | site)"),
        (". ~ 0 + .", "y ~ 0 + arm * x + I(x - 1) + (1 + x | site)"),
    ],
)
def test_a_formula_is_changed_as_r_does(update: str, expected: str) -> None:
    assert updated("y ~ arm * x + I(x - 1) + (1 + x | site)", update) == expected


def test_a_fit_is_made_again_with_another_formula_or_setting() -> None:
    fit = mixed_model(DF, "y ~ arm * sex + x + (1 | site)", draws=0)
    smaller = fit.refit("~ . - sex:arm - x")
    assert smaller.params.index.tolist() == ["Intercept", "arm[b]", "arm[c]", "sex[m]"]
    same = mixed_model(DF, "y ~ arm + sex + (1 | site)", draws=0)
    assert smaller.log_likelihood == pytest.approx(same.log_likelihood)
    assert fit.refit(population="ml").log_likelihood != pytest.approx(fit.log_likelihood)
    assert fit.refit(population="ml").method.settings.draws == 0
    for update, words in (
        ("x", "a formula is changed as in"),
        ("~ . - (1 | ward)", "has no term '\\(1\\|ward\\)' to leave out"),
        ("~ . * b", "in a change '.' is a term of its own, as in '~ . \\+ b \\+ x:b', and not part of '. \\* b'"),
        ("~ x + (. | site)", "not part of '\\(. \\| site\\)'"),
    ):
        with pytest.raises(UserError, match=words):
            fit.refit(update)
    with pytest.raises(UserError, match="not made by mixed_model"):
        FittedMixedModel(fit.run, fit.formula).refit()


def test_weights_are_of_the_likelihood_and_not_of_the_rows_that_are_described() -> None:
    df = DF.assign(w=1 + DF.k % 3)
    every = df.loc[df.index.repeat(df.w)].reset_index(drop=True)
    weighted, long = (mixed_model(df, "y ~ arm + x + (1 | site)", weights="w", draws=0),
                      mixed_model(every, "y ~ arm + x + (1 | site)", draws=0))  # fmt: skip
    np.testing.assert_allclose(weighted.vcov(), long.vcov(), rtol=1e-4)
    assert weighted.aic == pytest.approx(long.aic, abs=1e-6)
    assert (weighted.nobs, long.nobs) == (len(df), len(every))
    assert long.bic - weighted.bic == pytest.approx(6 * np.log(len(every) / len(df)), abs=1e-6)
    assert weighted.means("arm").attrs["at"]["x"] == pytest.approx(df.x.mean())
    beta = weighted.params
    eta = (df.arm == "b") * beta["arm[b]"] + (df.arm == "c") * beta["arm[c]"] + beta["x"] * df.x
    assert weighted.icc().variance["fixed effects"] == pytest.approx(eta.var())
