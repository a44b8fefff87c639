"""Draws of random effects at a held population, beside the densities themselves on a fine grid."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from support.levels import SDS, log_likelihood, own_numbers, table
from support.more_responses import MORE
from support.representatives import of_all
from support.responses import CASES, Case

from hierfl import mixed_model
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.models.mixed_effects.likelihood.posterior import JointDraws
from hierfl.models.mixed_effects.model.effects import users_beta
from hierfl.models.mixed_effects.model.names import by_short_name
from hierfl.models.mixed_effects.search.phases import explore

DRAWS = 6000
GRID = np.arange(-6, 6.01, 0.1)
#: a response with closed forms, one of each kind of density, and those with a number or cuts of their own
CHEAP = [CASES[name] for name in ("gaussian", "binomial", "poisson", "gamma", "hurdle-poisson")]
ALL = pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.family)
#: a minute each, and more: of later responses but Student's t the likelihood alone is compared, in test_responses.py
COMPARED = pytest.mark.parametrize(
    "case", [case for case in CASES.values() if case not in MORE[1:]], ids=lambda case: case.family
)


def held_draws(fitted) -> dict[str, np.ndarray]:
    """Draws (D, J, ...) of clients' effects, and of groups inside them, the population held at its estimates."""
    run, method = fitted.run, fitted.method
    values = by_short_name(run.shared)
    row = [method.numbers(values)] + ([] if method.likelihood.searches_beta else [values["beta"]])
    row += [values["regions"].flatten()] if method.above else []
    shared = {**run.shared, "effects.draws": torch.cat(row).expand(DRAWS, -1)}
    federation = run.fitted.federation
    order = sorted(range(federation.clients), key=lambda j: -len(federation.train[j]))
    own = {k: v[order].unsqueeze(1) for k, v in run.personal.items()}
    chunk = JointDraws(method).run(ClientChunk(method, federation, order, 1, 0, shared, own), 0)
    back = np.argsort(order)
    names = [name for name in ("b", "c") if f"{name}_draws" in chunk.values]
    return {name: chunk.values[f"{name}_draws"].flatten(1, 3).transpose(0, 1).numpy()[:, back] for name in names}


def moments(density: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of a density along the grid."""
    weight = np.exp(density - density.max())
    mean = (weight * GRID).sum() / weight.sum()
    return mean, np.sqrt((weight * (GRID - mean) ** 2).sum() / weight.sum())


def heights(case: Case, rows: pd.DataFrame, fitted, effect: np.ndarray) -> np.ndarray:
    """log p(rows | effects), of effects (...)."""
    estimate = fitted.summary().table.set_index("effect").estimate
    own = own_numbers(fitted)
    first = -estimate["1 | 2"] if case.family == "ordinal" else estimate["Intercept"]
    fixed = (first + estimate["x"] * rows.x.to_numpy()).reshape(-1, *[1] * effect.ndim)
    with np.errstate(divide="ignore"):
        return case.log_density(rows, fixed + effect, own).sum(0)


def is_near(draws: np.ndarray, mean: float, sd: float) -> None:
    """Of 6,000 draws of a Metropolis chain that is run anew for each one."""
    assert draws.mean() == pytest.approx(mean, abs=0.05 * sd)
    assert draws.std() == pytest.approx(sd, rel=0.05)


@pytest.mark.cpu(4, "6,000 draws, each the end of a chain")
@pytest.mark.parametrize("case", of_all([*CASES.values()], CHEAP, lambda case: case.family))
def test_clients_draws_are_of_their_posterior(case: Case) -> None:
    df = case.table(5, seed=3, rows=(2, 15))
    fitted = mixed_model(df, case.formula, family=case.family, draws=40, **case.how)  # type: ignore[arg-type]
    b = held_draws(fitted)["b"][..., 0]
    tau = fitted.summary().table.set_index("effect").estimate["sd(Intercept)"]
    for j, (_, rows) in enumerate(df.groupby("site")):
        mean, sd = moments(heights(case, rows, fitted, tau * GRID) - 0.5 * GRID**2)
        is_near(b[:, j], tau * mean, tau * sd)


@pytest.mark.slow
@pytest.mark.cpu(5, "6,000 draws of two levels that go together")
@pytest.mark.parametrize(
    "family", of_all(["gaussian", "binomial", "poisson", "zero-inflated-poisson"], ["gaussian", "poisson"], str)
)
def test_patients_draws_are_of_the_joint_posterior(family: str) -> None:
    case = CASES[family]
    df = table(case, 1, 4, 3, 4, seed=4, sds=(0, 0.8, 0.9))
    fitted = mixed_model(df, f"{case.response} ~ x + (1 | site/patient)", family=family, draws=40, **case.how)  # type: ignore[arg-type]
    estimate, draws = fitted.summary().table.set_index("effect").estimate, held_draws(fitted)
    tau, inner = estimate[SDS["site"]], estimate[SDS["patient"]]
    for j, (_, site) in enumerate(df.groupby("site")):
        # (..., u, v) of each patient, and its integral over v
        both = [
            heights(case, rows, fitted, tau * GRID[:, None] + inner * GRID) - 0.5 * GRID**2
            for _, rows in site.groupby("patient")
        ]
        alone = [np.logaddexp.reduce(log_joint, axis=1) for log_joint in both]
        total = sum(alone) - 0.5 * GRID**2
        mean, sd = moments(total)
        is_near(draws["b"][:, j, 0], tau * mean, tau * sd)
        for k, log_joint in enumerate(both):
            density = np.logaddexp.reduce(log_joint + (total - alone[k])[:, None], axis=0)
            mean, sd = moments(density)
            is_near(draws["c"][:, j, k + 1, 0], inner * mean, inner * sd)
        is_near(draws["c"][:, j, 0, 0], 0.0, inner)  # a patient who was not there


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_regions_effects_are_their_posterior_means(family: str) -> None:
    case = CASES[family]
    df = table(case, 4, 3, 1, 6, seed=2, sds=(0.9, 0.8, 0))
    fitted = mixed_model(df, f"{case.response} ~ x + (1 | region/site)", family=family, client="site", draws=0)  # type: ignore[arg-type]
    estimate = fitted.summary().table.set_index("effect").estimate
    outer, tau = estimate[SDS["region"]], estimate[SDS["site"]]
    for (_, region), mean in zip(df.groupby("region"), fitted.ranef("region")["mean"], strict=True):
        total = -0.5 * GRID**2
        for _, rows in region.groupby("site"):
            both = heights(case, rows, fitted, outer * GRID[:, None] + tau * GRID) - 0.5 * GRID**2
            total = total + np.logaddexp.reduce(both, axis=1)
        middle, sd = moments(total)
        assert mean == pytest.approx(outer * middle, abs=1e-4 * outer * sd)


PRIORS = {
    "population": "bayes", "intercept_prior": "normal(0, 2)", "beta_prior": "normal(0, 1)",
    "sd_prior": "half-normal(1)",
}  # fmt: skip


@pytest.mark.slow
@COMPARED
def test_a_population_is_the_priors_times_the_likelihood(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Means within 0.05 standard deviations, and these within 5 %, of importance sampling from another density, with
    the likelihood by sums over a grid; so many points that neither has a part in that.
    """
    monkeypatch.setattr(explore, "MIN_EFFECTIVE_POINTS", 6000)
    monkeypatch.setattr(explore, "MOST_POINTS", 2**15)
    df = table(case, 1, 8, 1, 8, sds=(0, 0.8, 0))
    residual, how = case.family in ("gaussian", "lognormal", "student-t"), dict(case.how)
    how |= PRIORS | ({"residual_prior": "half-normal(1)"} if residual else {})
    fitted = mixed_model(df, f"{case.response} ~ x + (1 | site)", family=case.family, draws=8000, **how)  # type: ignore[arg-type]
    assert fitted.summary().numbers["effective_points"] > 5000
    draws = fitted.method.parts(fitted.run.shared["effects.draws"])
    beta = users_beta(fitted.method, draws["beta"]).numpy()
    tau = draws["root"].abs().log().numpy()
    unit = {"log_scale": np.log(fitted.method.response_family.unit)}  # own numbers as support.levels.own_numbers
    own = [draws[k].reshape(len(beta), -1).numpy() + unit.get(k, 0) for k in fitted.method.response_family.starts]
    ours = np.concatenate([beta, tau, *own], 1)  # as support.levels.point

    def log_posterior(theta: np.ndarray) -> float:
        shifted = theta.copy()
        if case.family == "weibull":  # whose prior is of the mean hazard until about the mean time
            shifted[0] += (np.exp(theta[3]) - 1) * fitted.method.network.offset
        total = log_likelihood(shifted, df, case, ("site",), 0.25)
        total += stats.norm.logpdf(theta[0] + theta[1] * df.x.mean(), 0, 2) + stats.norm.logpdf(theta[1])
        total += stats.norm.logpdf(np.exp(theta[2])) + theta[2]
        if residual:
            total += stats.norm.logpdf(np.exp(theta[3])) + theta[3]
            return total + stats.norm.logpdf(theta[4:], 0, 3).sum()
        return total + stats.norm.logpdf(theta[3:], 0, 3).sum()

    rng = np.random.default_rng(0)
    # Of a spread that may be next to nothing the tail is a long one.
    wide = stats.multivariate_t(ours.mean(0), 1.3 * np.cov(ours.T), df=4, seed=rng)
    points = wide.rvs(8000)
    with np.errstate(all="ignore"):
        log_weights = np.array([log_posterior(point) for point in points]) - wide.logpdf(points)
    weights = np.exp(log_weights - np.nanmax(log_weights))
    weights = np.nan_to_num(weights) / np.nansum(weights)
    assert 1 / (weights**2).sum() > 3000
    values, our_values = points.copy(), ours.copy()
    values[:, 2], our_values[:, 2] = np.exp(points[:, 2]), np.exp(ours[:, 2])
    mean = weights @ values
    sd = np.sqrt(weights @ (values - mean) ** 2)
    np.testing.assert_array_less(np.abs(our_values.mean(0) - mean) / sd, 0.05)
    np.testing.assert_allclose(our_values.std(0), sd, rtol=0.05)
