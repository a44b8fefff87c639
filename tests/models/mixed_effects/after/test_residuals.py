"""Fitted values, residuals and simulated responses, by formulas, integrals and statsmodels."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
import torch
from scipy import integrate, stats
from support.after_fit import arms

from hierfl import UserError, mixed_model
from hierfl.models.mixed_effects.after.quantiles import quantiles
from hierfl.models.mixed_effects.fitted_model import FittedMixedModel
from hierfl.responses.gaussian import GaussianResponse

#: an index of its own, in no order
DF = arms().sample(frac=1, random_state=1)


@pytest.fixture(scope="module")
def fit() -> FittedMixedModel:
    return mixed_model(DF, "y ~ arm + x + (1 | site)", draws=100)


@pytest.fixture(scope="module")
def counts() -> FittedMixedModel:
    return mixed_model(DF, "k ~ x + (1 | site)", family="poisson", draws=0)


def sds(fit: FittedMixedModel) -> pd.Series:
    return fit.summary().table.set_index("effect").estimate


def test_fitted_values_are_statsmodels_and_those_of_the_table_that_was_fitted(fit: FittedMixedModel) -> None:
    other = smf.mixedlm("y ~ arm + x", DF, groups="site").fit(reml=True)
    np.testing.assert_allclose(fit.fitted(), other.fittedvalues.loc[DF.index], atol=2e-4)
    pd.testing.assert_series_equal(fit.fitted(), fit.fitted(DF))
    pd.testing.assert_series_equal(fit.residuals(), DF.y - fit.fitted(), check_names=False)
    pd.testing.assert_series_equal(fit.residuals(df=DF.iloc[5:9]), fit.residuals().iloc[5:9])
    np.testing.assert_allclose(fit.residuals("pearson"), fit.residuals() / sds(fit)["sd(residual)"])
    fixed = (
        fit.params["Intercept"]
        + fit.params["x"] * DF.x
        + DF.arm.map({**fit.params, "a": 0, "b": fit.params["arm[b]"], "c": fit.params["arm[c]"]})
    )
    np.testing.assert_allclose(fit.fitted(level="population"), fixed)


def test_quantile_residuals_of_a_normal_response_are_those_of_its_marginal(fit: FittedMixedModel) -> None:
    wide = np.hypot(sds(fit)["sd(Intercept)"], sds(fit)["sd(residual)"])
    expected = (DF.y - fit.fitted(level="population")) / wide
    np.testing.assert_allclose(fit.residuals("quantile"), expected, atol=1e-6)


def test_quantile_residuals_of_counts_lie_between_the_ends_of_their_steps(counts: FittedMixedModel) -> None:
    residuals, sd = counts.residuals("quantile", seed=4), sds(counts)["sd(Intercept)"]
    u = stats.norm.cdf(residuals)
    for row in range(0, len(DF), 37):
        eta, y = counts.params["Intercept"] + counts.params["x"] * DF.x.iloc[row], DF.k.iloc[row]

        def below(y: float, eta: float = eta) -> float:
            def of(b: float) -> float:
                return stats.poisson.cdf(y, np.exp(eta + b)) * stats.norm.pdf(b, scale=sd)

            return integrate.quad(of, -8 * sd, 8 * sd)[0]

        assert below(y - 1) - 1e-5 <= u[row] <= below(y) + 1e-5
    assert not np.allclose(residuals, counts.residuals("quantile", seed=5))
    np.testing.assert_array_equal(residuals, counts.residuals("quantile", DF, seed=4))
    mean = counts.fitted()
    np.testing.assert_allclose(counts.residuals("pearson"), (DF.k - mean) / np.sqrt(mean))


@pytest.mark.parametrize(
    ("left", "family", "more"),
    [
        ("t", "weibull", {"event": "seen"}), ("level", "ordinal", {}),
        pytest.param("p(good, tries)", "beta-binomial", {}, marks=pytest.mark.slow),
        ("n", "negative-binomial", {}),
    ],
)  # fmt: skip
def test_quantile_residuals_are_normal_where_the_model_holds(left: str, family: str, more: dict) -> None:
    rng = np.random.default_rng(8)
    p = rng.beta(2, 2, len(DF))
    df = DF.assign(
        level=pd.Categorical(np.array(["low", "some", "high"])[np.digitize(DF.y, [1, 2])], ["low", "some", "high"]),
        tries=rng.integers(3, 9, len(DF)),
    )
    df["level"] = df.level.cat.as_ordered()
    df["good"], df["n"] = rng.binomial(df.tries, p), rng.negative_binomial(2, 0.4, len(DF))
    fit = mixed_model(df, f"{left} ~ arm + x + (1 | site)", family=family, draws=0, **more)
    assert stats.kstest(fit.residuals("quantile"), "norm").pvalue > 0.01
    drawn = fit.simulate(n=3, seed=1)
    pd.testing.assert_index_equal(drawn.index, df.index)
    column = {"p(good, tries)": "good"}.get(left, left)
    again = fit.residuals("quantile", df.assign(**{column: drawn[1], "seen": 1}))
    assert stats.kstest(again, "norm").statistic < 0.12  # the simulated clients' own effects are in it
    if family == "ordinal":
        assert set(drawn[0]) == {"low", "some", "high"}
    if family == "weibull":
        # Of a time that was not watched to its event nothing but a bound is known.
        assert fit.residuals().isna().equals(df.seen == 0)
        with pytest.raises(UserError, match="no Pearson residuals"):
            fit.residuals("pearson")


def test_a_response_without_a_distribution_function_is_simulated() -> None:
    class NoCdf(torch.distributions.Normal):
        def cdf(self, value: torch.Tensor) -> torch.Tensor:
            raise NotImplementedError

    y = torch.linspace(-2, 2, 9).double()
    fn = NoCdf(torch.zeros(40, 9).double(), 1.0)
    weights, noise = torch.full((40,), 1 / 40).double(), torch.full((9,), 0.5).double()
    with torch.random.fork_rng():
        probabilities = quantiles(GaussianResponse(False, 1.0), fn, y, weights, None, noise)
    np.testing.assert_allclose(probabilities, stats.norm.cdf(y), atol=0.02)


def test_simulated_responses_have_the_models_moments_and_share_their_clients_effects(fit: FittedMixedModel) -> None:
    new = pd.DataFrame({"site": np.repeat([f"t{k}" for k in range(1500)], 2), "arm": "b", "x": 3.0})
    drawn = fit.simulate(new, seed=3)[0].to_numpy().reshape(-1, 2)
    mean, sd = fit.params[["Intercept", "arm[b]"]].sum() + 3 * fit.params["x"], sds(fit)
    variance = sd["sd(Intercept)"] ** 2 + sd["sd(residual)"] ** 2
    assert drawn.mean() == pytest.approx(mean, abs=4 * np.sqrt(variance / 1500))
    assert drawn.var() == pytest.approx(variance, rel=0.12)
    correlation = np.corrcoef(drawn.T)[0, 1]
    assert correlation == pytest.approx(sd["sd(Intercept)"] ** 2 / variance, abs=0.1)
    own = fit.simulate(n=200, level="client", seed=3)
    np.testing.assert_allclose(own.mean(1), fit.fitted(), atol=5 * sd["sd(residual)"] / np.sqrt(200))
    pd.testing.assert_frame_equal(fit.simulate(n=2, seed=6), fit.simulate(n=2, seed=6))


def test_groups_inside_and_above_share_their_effects_in_simulations() -> None:
    df = DF.assign(region=DF.site.map(lambda s: f"r{int(s[1:]) % 4}"), ward=DF.sex)
    fit = mixed_model(df, "y ~ x + (1 | region/site/ward)", client="site", draws=0)
    sd = sds(fit)
    new = pd.DataFrame({"region": np.repeat([f"q{k}" for k in range(400)], 4), "x": 0.0})
    new["site"], new["ward"] = new.region + "-" + np.tile(list("aabb"), 400), np.tile(list("uvuu"), 400)
    drawn = fit.simulate(new, seed=2)[0].to_numpy().reshape(-1, 4)
    covariance, squares = np.cov(drawn.T), {name: value**2 for name, value in sd.items()}
    region = next(v for k, v in squares.items() if k.startswith("sd(") and "region" in k)
    inner = next(v for k, v in squares.items() if k.startswith("sd(") and "ward" in k)
    client = squares["sd(Intercept)"]
    for (i, j), expected in {(0, 2): region, (0, 1): region + client, (2, 3): region + client + inner}.items():
        assert covariance[i, j] == pytest.approx(expected, abs=0.2)
    fitted = fit.fitted(level="client")
    assert fitted.std() > fit.fitted(level="population").std()


def test_rows_that_were_left_out_have_no_residual_and_others_theirs() -> None:
    df = DF.assign(x=DF.x.mask(np.arange(len(DF)) % 50 == 3))
    fit = mixed_model(df, "y ~ x + (1 | site)", draws=0, na="drop")
    pd.testing.assert_index_equal(fit.residuals().index, df.index[df.x.notna()])
    pd.testing.assert_series_equal(fit.residuals(df=df), fit.residuals())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda f: f.residuals("deviance"), "unknown kind 'deviance'"),
        (lambda f: f.residuals(level="site"), "unknown level 'site'"),
        (lambda f: f.fitted(DF.assign(site="new")), "'new' is not among those fitted"),
        (lambda f: f.simulate(DF.drop(columns="site")), "lacks column 'site'"),
        (lambda f: f.simulate(n=0), "n must be at least 1"),
        (lambda f: f.residuals(df=DF.drop(columns="y")), "y"),
        (lambda f: f.fitted(DF.iloc[:0]), "no rows"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(fit: FittedMixedModel, call, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=words) as error:
        call(fit)
    assert "\n" not in str(error.value)


def test_of_trials_fitted_values_are_expected_successes_and_residuals_counts() -> None:
    df = DF.assign(n=DF.k + 2)
    fit = mixed_model(df, "p(k, n) ~ x + (1 | site)", family="binomial", draws=0)
    fitted, share = fit.fitted(), fit.fitted(df.drop(columns=["k", "n"]))
    np.testing.assert_allclose(fitted, df.n * share, rtol=1e-12)
    np.testing.assert_allclose(fit.residuals(), df.k - fitted, rtol=1e-12, atol=1e-12)
    # As R's: of shares with weights n.
    pearson = np.sqrt(df.n) * (df.k / df.n - share) / np.sqrt(share * (1 - share))
    np.testing.assert_allclose(fit.residuals("pearson"), pearson, rtol=1e-10)
