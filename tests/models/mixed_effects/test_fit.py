"""Federated mixed models of gaussian responses against pooled ones."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from support.mixed import DYESTUFF, covariance, estimates, fitted, log_likelihood, random_effects, referee, table

from hierfl import UserError
from hierfl.data.formula.federate import from_formula
from hierfl.inference import fit
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.models.mixed_effects.report.summary import effects_table
from hierfl.models.mixed_effects.search.requests import Phase


@pytest.mark.parametrize("population", ["ml", "reml"])
@pytest.mark.parametrize("random", ["1", "1 + x"])
def test_the_federated_fit_is_the_pooled_one(random: str, population: str) -> None:
    """Of statsmodels', whose own optimum is good to about 1e-5 standard errors."""
    df = table(slope="x" in random)
    theirs = referee(df, f"~ {random}", population == "reml")
    run = fitted(df, f"y ~ 1 + x + ({random} | site)", population=population)
    effects, numbers = effects_table(run.fitted)
    error = (effects.estimate[:2].to_numpy() - theirs.fe_params.values) / theirs.bse_fe.values
    assert np.abs(error).max() < 1e-4
    np.testing.assert_allclose(effects.standard_error[:2], theirs.bse_fe.values, rtol=1e-3)
    np.testing.assert_allclose(covariance(run), theirs.cov_re.values, rtol=5e-3)
    assert estimates(run)["sd(residual)"] ** 2 == pytest.approx(theirs.scale, rel=1e-4)
    assert numbers["log_likelihood"] == pytest.approx(theirs.llf, abs=1e-4)
    assert numbers["log_likelihood"] > theirs.llf - 1e-9
    mean, cov = random_effects(run)
    for j, site in enumerate(run.fitted.federation.ids):
        spread = np.sqrt(cov[j].diagonal())
        assert np.abs((mean[j] - theirs.random_effects[site].values) / spread).max() < 0.01
        wanted = theirs.random_effects_cov[site].values
        np.testing.assert_allclose(cov[j], wanted, rtol=0.01, atol=0.002 * wanted.max())


def test_the_likelihood_is_at_its_maximum() -> None:
    """Neither a smaller nor a larger value of anything is more likely: exact, by the multivariate normal."""
    df = table(15)
    run = fitted(df, "y ~ 1 + x + (1 + x | site)")
    estimate, cov = estimates(run), covariance(run)
    beta, sigma, names = estimate[["Intercept", "x"]].to_numpy(), estimate["sd(residual)"], ("1", "x")
    best = log_likelihood(df, beta, cov, sigma, names)
    assert effects_table(run.fitted)[1]["log_likelihood"] == pytest.approx(best, abs=1e-9)
    for step in (-1e-3, 1e-3):
        assert log_likelihood(df, beta, cov, sigma * (1 + step), names) < best
        for k in range(2):
            unit = np.eye(2)[k]
            assert log_likelihood(df, beta + step * unit, cov, sigma, names) < best
            turn = np.diag(1 + step * unit)
            assert log_likelihood(df, beta, turn @ cov @ turn, sigma, names) < best
        other = cov * (1 + step * (1 - np.eye(2)))
        assert log_likelihood(df, beta, other, sigma, names) < best


def test_the_numbers_that_lme4_documents() -> None:
    """Its REML and ML fits of the yields of dyestuff."""
    wanted = {"reml": (42.0006, 49.5101, 19.3834, -159.8271), "ml": (37.2603, 49.5101, 17.6945, -163.6635)}
    for population, (batch, residual, error, height) in wanted.items():
        effects, numbers = effects_table(fitted(DYESTUFF, "Yield ~ 1 + (1 | Batch)", population=population).fitted)
        assert effects.estimate.to_numpy() == pytest.approx([1527.5, batch, residual], abs=6e-5)
        assert effects.standard_error[0] == pytest.approx(error, abs=6e-5)
        assert numbers["log_likelihood"] == pytest.approx(height, abs=6e-5)
        assert numbers["aic"] == pytest.approx(6 - 2 * height, abs=2e-4)
    # of a balanced one-way layout the degrees of freedom are those of the batches' means
    effects = effects_table(fitted(DYESTUFF, "Yield ~ 1 + (1 | Batch)", population="reml").fitted)[0]
    assert effects.df[0] == pytest.approx(5, rel=1e-6)


def test_a_fit_ends_where_it_is_done() -> None:
    """The Newton step to go is below ``tol``, rounds are not used up, and more of them change nothing."""
    run = fitted(table(), "y ~ 1 + x + (1 + x | site)", tol=1e-3)
    assert run.rounds < 12
    assert effects_table(run.fitted)[1]["off_maximum"] < 1e-3
    assert int(run.shared["effects.phase"]) == Phase.DONE
    short = fitted(table(), "y ~ 1 + x + (1 + x | site)", rounds=2)
    assert short.rounds == 2
    assert effects_table(short.fitted)[1]["off_maximum"] > 1e-3


def test_a_diagonal_covariance_has_none_off_it() -> None:
    run = fitted(table(), "y ~ 1 + x + (1 + x | site)", covariance="diagonal")
    assert len(run.shared["effects.root"]) == 2
    full = fitted(table(), "y ~ 1 + x + (1 + x | site)")
    heights = [effects_table(fitted_run.fitted)[1]["log_likelihood"] for fitted_run in (run, full)]
    assert heights[0] < heights[1]


def eight_schools() -> pd.DataFrame:
    """Rubin (1981): the effect of coaching in eight schools, each seen once, with known standard errors."""
    return pd.DataFrame(
        {
            "y": [28.0, 8, -3, 7, -1, 1, 18, 12],
            "se": [15.0, 10, 16, 11, 9, 11, 10, 18],
            "site": list("ABCDEFGH"),
        }
    )


def test_known_standard_errors_and_places_seen_once() -> None:
    """Held at tau = 10: the analytic posterior; learned: tau is zero, and the schools have one mean, as is known."""
    df = eight_schools()
    fixed = fitted(df, "y ~ 1 + (1 | site)", known_se="se", prior="fixed", sd_0=10.0 / df.y.std(ddof=0))
    weight = 1 / (df.se**2 + 100)
    mu = (weight * df.y).sum() / weight.sum()
    assert estimates(fixed)["Intercept"] == pytest.approx(mu, abs=1e-9)
    shrunk = (df.y - mu) * 100 / (100 + df.se**2)
    np.testing.assert_allclose(fixed.personal["b_mean"].flatten().numpy(), shrunk, atol=1e-9)
    variance = 1 / (1 / 100 + 1 / df.se**2)
    np.testing.assert_allclose(fixed.personal["b_root"].flatten().numpy() ** 2, variance, rtol=1e-9)
    assert estimates(fixed)["sd(Intercept)"] == pytest.approx(10.0)
    learned = fitted(df, "y ~ 1 + (1 | site)", known_se="se")
    assert estimates(learned)["sd(Intercept)"] < 1e-3
    assert list(effects_table(learned.fitted)[0].note) == ["", "at its lower bound"]
    weight = 1 / df.se**2
    assert estimates(learned)["Intercept"] == pytest.approx((weight * df.y).sum() / weight.sum(), abs=1e-6)


def test_eight_schools_under_posteriordbs_priors() -> None:
    """mu ~ N(0, 5), tau ~ half-Cauchy(5): its reference draws' means and standard deviations (Magnusson et al., 2024).

    Theirs are of 10,000 draws; ours of some 650 independent ones' worth, so that a mean is good to a twentieth of a
    standard deviation.
    """
    run = fitted(
        eight_schools(), "y ~ 1 + (1 | site)", known_se="se", population="bayes", intercept_prior="normal(0, 5)",
        sd_prior="half-cauchy(5)", draws=8000,
    )  # fmt: skip
    effects = effects_table(run.fitted)[0].set_index("effect")
    for name, mean, sd in (("Intercept", 4.40, 3.32), ("sd(Intercept)", 3.60, 3.22)):
        assert effects.loc[name, "estimate"] == pytest.approx(mean, abs=0.05 * sd), name
        assert effects.loc[name, "standard_error"] == pytest.approx(sd, rel=0.05), name
    mu = run.posterior().posterior["effects"].sel(effect="Intercept")
    theta = run.posterior().posterior["b"].squeeze("b_dim_0") + mu
    means, sds = (getattr(theta, of)(("chain", "draw")).to_numpy() for of in ("mean", "std"))
    wanted = [6.15, 4.94, 3.91, 4.77, 3.59, 4.04, 6.29, 4.85]
    spread = [5.64, 4.61, 5.29, 4.74, 4.63, 4.80, 5.02, 5.29]
    np.testing.assert_allclose(means, wanted, atol=0.05 * 5.6)
    np.testing.assert_allclose(sds, spread, rtol=0.05)


def test_terms_of_their_own_have_no_correlations() -> None:
    df = table(10)
    run = fitted(df, "y ~ x + (1 | site) + (0 + x | site)")
    assert list(estimates(run).index) == ["Intercept", "x", "sd(Intercept)", "sd(x)", "sd(residual)"]
    cov = covariance(run)
    assert cov[0, 1] == 0
    beta, sigma = estimates(run)[["Intercept", "x"]].to_numpy(), estimates(run)["sd(residual)"]
    best = log_likelihood(df, beta, cov, sigma, ("1", "x"))
    assert effects_table(run.fitted)[1]["log_likelihood"] == pytest.approx(best, abs=1e-9)


def test_single_precision_is_refused() -> None:
    fed, design = from_formula(table(5), "y ~ x + (1 | site)")
    with pytest.raises(UserError, match="double precision"):
        fit(MixedEffects(design), fed, rounds=1, progress=False)


def test_everybody_takes_part() -> None:
    fed, design = from_formula(table(5), "y ~ x + (1 | site)")
    with pytest.raises(UserError, match="needs every client in each round"):
        fit(MixedEffects(design), fed, rounds=1, progress=False, participation=0.5, dtype=torch.float64)


def test_an_effect_without_which_the_data_are_as_likely_has_no_standard_error() -> None:
    rng = np.random.default_rng(2)
    who = np.repeat(np.arange(20), 20)
    x = rng.normal(size=400)
    y = np.tile(np.r_[np.zeros(10), np.ones(10)], 20)  # every site alike: less spread than chance
    df = pd.DataFrame({"y": y, "x": x, "site": who})
    fed, design = from_formula(df, "y ~ x + (1 | site)", family="binomial")
    run = fit(MixedEffects(design, draws=0), fed, 100, dtype=torch.float64, progress=False, evaluate_every=100)
    effects, numbers = effects_table(run.fitted)
    assert list(effects.note) == ["", "", "at its lower bound"]
    assert effects.standard_error[:2].notna().all()
    assert numbers["off_maximum"] < 1e-4


@pytest.mark.parametrize("random", ["1", "1 + x"])
def test_a_covariate_far_from_zero(random: str) -> None:
    """Years instead of years since 2000: the same likelihood, slopes and standard errors."""
    df = table(12)
    near, far = (effects_table(fitted(df.assign(x=df.x + at), f"y ~ x + ({random} | site)").fitted) for at in (0, 1e5))
    assert far[1]["log_likelihood"] == pytest.approx(near[1]["log_likelihood"], abs=1e-6)
    for column in ("estimate", "standard_error"):
        theirs, ours = (summary[0].set_index("effect")[column] for summary in (near, far))
        for name in ("x", "sd(residual)", *(["sd(x)"] if "x" in random else [])):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4), (name, column)


def test_many_random_effects_of_a_gaussian() -> None:
    df = table(15).assign(g=lambda d: np.array(list("abcd"))[np.arange(len(d)) % 4])
    run = fitted(df, "y ~ 1 + (0 + g | site)", covariance="diagonal")
    assert len(run.shared["effects.root"]) == 4
    assert effects_table(run.fitted)[1]["off_maximum"] < 1e-4


def test_units_do_not_matter() -> None:
    df = table()
    plain = fitted(df, "y ~ 1 + x + (1 + x | site)")
    scaled = fitted(df.assign(y=df.y * 1000, x=df.x * 50), "y ~ 1 + x + (1 + x | site)")
    ratio = (estimates(scaled) / estimates(plain))[["Intercept", "x"]].to_numpy()
    np.testing.assert_allclose(ratio, [1000, 20], rtol=1e-7)
    np.testing.assert_allclose(covariance(scaled), covariance(plain) * np.array([[1e6, 2e4], [2e4, 400]]), rtol=1e-6)
