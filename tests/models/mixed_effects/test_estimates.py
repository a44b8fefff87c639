"""Estimates of clients alone, and of all data as one."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from support.mixed import estimates, fitted, random_effects, table

from hierfl.data.formula.federate import from_formula
from hierfl.inference import fit
from hierfl.models.mixed_effects.method import MixedEffects


def test_a_places_own_and_the_pooled_estimates_are_regressions_without_a_prior() -> None:
    import statsmodels.formula.api as smf

    df = table(12)
    run = fitted(df, "y ~ 1 + x + (1 + x | site)")
    frame = run.fitted.method.shrinkage_table(run.fitted)
    assert list(frame.columns) == ["client", "n", "effect", "local", "population", "pooled", "hierarchical"]
    for site, part in frame.groupby("client"):
        theirs = smf.ols("y ~ x", df[df.site == site]).fit().params.values
        np.testing.assert_allclose(part["local"], theirs, rtol=1e-6)
    pooled = smf.ols("y ~ x", df).fit().params.values
    np.testing.assert_allclose(frame.groupby("effect", sort=False)["pooled"].first(), pooled, rtol=1e-9)
    beta = estimates(run)[["Intercept", "x"]].to_numpy()
    np.testing.assert_allclose(frame["hierarchical"], (random_effects(run)[0] + beta).T.ravel(), rtol=1e-9)
    np.testing.assert_allclose(frame.groupby("effect", sort=False)["population"].first(), beta, rtol=1e-9)
    drawn = fitted(df, "y ~ 1 + x + (1 + x | site)", draws=4000)  # the posterior's mean, population included
    again = drawn.fitted.method.shrinkage_table(drawn.fitted)["hierarchical"]
    data = drawn.posterior().posterior
    whole = data["b"] + data["effects"].sel(effect=["Intercept", "x"]).rename(effect="b_dim_0")
    wanted = whole.mean(("chain", "draw")).transpose("b_dim_0", "client").to_numpy().ravel()
    np.testing.assert_allclose(again, wanted, atol=0.02)


def test_estimates_where_columns_are_large_or_coded_otherwise() -> None:
    import statsmodels.formula.api as smf

    df = table(12)
    df["year"] = 2000 + np.round(df["x"])
    df["square"] = df["year"] ** 2
    run = fitted(df, "y ~ 1 + year + square + (1 | site)")
    theirs = smf.ols("y ~ I(year - 2000) + I((year - 2000)**2)", df).fit().params.values
    whole = theirs[0] - 2000 * theirs[1] + 2000**2 * theirs[2]
    assert run.fitted.method.shrinkage_table(run.fitted)["pooled"].iloc[0] == pytest.approx(whole, rel=1e-5)
    df["g"] = np.where(np.arange(len(df)) % 2, "B", "A")
    run = fitted(df, "y ~ 1 + g + (0 + g | site)")  # contrasts, and a mean of each
    frame = run.fitted.method.shrinkage_table(run.fitted)
    assert frame["effect"].unique().tolist() == ["g[A]", "g[B]"]
    means = df.groupby("g")["y"].mean().to_numpy()
    np.testing.assert_allclose(frame.groupby("effect", sort=False)["pooled"].first(), means, rtol=1e-9)
    beta = estimates(run).to_numpy()[:2]
    population = frame.groupby("effect", sort=False)["population"].first()
    np.testing.assert_allclose(population, [beta[0], beta.sum()], rtol=1e-9)
    own = df.groupby(["g", "site"])["y"].mean().to_numpy()
    told = frame["local"].notna().to_numpy()
    assert told.sum() > 20
    np.testing.assert_allclose(frame["local"][told], own[told] if len(own) == len(told) else 0, rtol=1e-6)
    run = fitted(df, "y ~ 1 + (1 + x | site)")  # a slope that no fixed effect goes with
    frame = run.fitted.method.shrinkage_table(run.fitted)
    assert frame[frame["effect"] == "x"][["population", "pooled"]].abs().max(None) < 1e-12
    tight = fitted(df, "y ~ 1 + x + (1 | site)", prior="fixed", sd_0=1e-6)  # wide is wide of the data, not of this
    frame = tight.fitted.method.shrinkage_table(tight.fitted)
    rest = df["y"] - estimates(tight)["x"] * df["x"]
    np.testing.assert_allclose(frame["local"], rest.groupby(df["site"]).mean(), rtol=1e-6)


@pytest.mark.parametrize("family", [pytest.param("binomial", marks=pytest.mark.slow), "poisson"])
def test_estimates_of_other_families(family: str) -> None:
    """Against generalised linear models of each place; none where a coefficient is infinite, or not to be told."""
    import statsmodels.api as sm
    import statsmodels.formula.api as smf

    rng = np.random.default_rng(3)
    who = np.repeat(np.arange(6), [80, 60, 50, 40, 8, 5])
    x = rng.normal(size=len(who))
    eta = 0.2 + 0.6 * x + rng.normal(0, 0.7, 6)[who]
    y = rng.poisson(np.exp(eta)) if family == "poisson" else (rng.uniform(size=len(who)) < 1 / (1 + np.exp(-eta))) * 1
    y[who == 4] = 1 if family == "binomial" else 0  # at infinity
    x[who == 5] = 0.3  # two columns that are one
    df = pd.DataFrame({"y": y, "x": x, "site": [f"s{j}" for j in who]})
    fed, design = from_formula(df, "y ~ 1 + x + (1 + x | site)", family=family)  # type: ignore[arg-type]
    run = fit(MixedEffects(design, draws=0), fed, rounds=100, dtype=torch.float64, progress=False)
    frame = run.fitted.method.shrinkage_table(run.fitted)
    glm = getattr(sm.families, family.capitalize())()
    for site, part in frame.groupby("client"):
        if site in ("s4", "s5"):
            assert part["local"].isna().all(), site
        else:
            theirs = smf.glm("y ~ x", df[df.site == site], family=glm).fit(tol=1e-12).params.values
            np.testing.assert_allclose(part["local"], theirs, rtol=1e-5, atol=1e-6)
    theirs = smf.glm("y ~ x", df, family=glm).fit(tol=1e-12).params.values
    np.testing.assert_allclose(frame.groupby("effect", sort=False)["pooled"].first(), theirs, rtol=1e-6)
    wanted = random_effects(run)[0] + estimates(run)[["Intercept", "x"]].to_numpy()
    np.testing.assert_allclose(frame["hierarchical"], wanted.T.ravel(), rtol=1e-9)
