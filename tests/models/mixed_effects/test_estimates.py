"""Curvature, and estimates of clients alone and of all data as one."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from support.mixed import fitted, table

from hierfl.data.formula.federate import from_formula
from hierfl.inference import fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.clients.scores import curvature
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.models.mixed_effects.quadrature import marginals


def test_what_draws_know_of_the_curvature() -> None:
    """Away from the maximum: Louis' identity from exact draws against the marginal's own second derivatives."""
    df = table(12)
    run = fitted(df, "y ~ 1 + x + (1 + x | site)", rounds=3)
    names = [k for k in run.shared if k.startswith("effects.")]
    fed, method = run.fitted.federation, run.fitted.method
    order = sorted(range(12), key=lambda j: -len(fed.train[j]))
    rows = {k: v[order].unsqueeze(1) for k, v in run.personal.items()}
    chunk = ClientChunk(method, fed, order, 1, 0, run.shared, rows)
    chunk = method.local()[0].run(chunk, 0)
    known = curvature(chunk, names, "b", 10_000)
    theta = torch.cat([run.shared[k].flatten() for k in names]).requires_grad_()
    sizes = [run.shared[k].numel() for k in names]
    for place in (0, 5, 11):
        part = chunk.take([place])
        with torch.enable_grad():
            moved = dict(
                zip(
                    names,
                    (p.view_as(run.shared[k]) for k, p in zip(names, theta.split(sizes), strict=True)),
                    strict=True,
                )
            )
            height = marginals(method, part.batch(), {**part.view, **moved}).sum()
            (slope,) = torch.autograd.grad(height, theta, create_graph=True)
            exact = -torch.stack([torch.autograd.grad(g, theta, retain_graph=True)[0] for g in slope])
        scores = torch.cat([known.scores[k][place].flatten() for k in names])
        assert torch.allclose(scores, slope.detach(), rtol=1e-6, atol=1e-6)
        gap = (known.observed[place] - exact).abs()
        assert gap[:2, :2].max() < 1e-12  # of the fixed effects nothing is left to the draws
        scale = known.profile[place].diagonal().abs().clamp_min(1).sqrt()
        assert (gap < 0.08 * scale[:, None] * scale).all(), place
        assert torch.linalg.eigvalsh(known.profile[place] - known.observed[place]).min() > -1e-9


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
    mean = run.personal["b_mean"].numpy() + run.shared["effects.beta"].numpy()
    np.testing.assert_allclose(frame["hierarchical"], mean.T.ravel(), rtol=1e-9)
    beta = frame.groupby("effect", sort=False)["population"].first()
    np.testing.assert_allclose(beta, run.shared["effects.beta"], rtol=1e-9)
    drawn = fitted(df, "y ~ 1 + x + (1 + x | site)", draws=20)  # the exact mean, not that of the chains
    again = drawn.fitted.method.shrinkage_table(drawn.fitted)["hierarchical"]
    np.testing.assert_allclose(again, frame["hierarchical"], rtol=1e-9)


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
    beta = run.shared["effects.beta"].numpy()
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
    rest = df["y"] - float(tight.shared["effects.beta"][1]) * df["x"]
    np.testing.assert_allclose(frame["local"], rest.groupby(df["site"]).mean(), rtol=1e-6)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
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
    fed, design = from_formula(df, "y ~ 1 + x + (1 + x | site)", family=family)
    run = fit(MixedEffects(design, draws=0), fed, rounds=15, dtype=torch.float64, progress=False)
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
    draws = run.personal["b_draws"].numpy().mean((1, 2)) + run.shared["effects.beta"].numpy()
    np.testing.assert_allclose(frame["hierarchical"], draws.T.ravel(), rtol=1e-9)
