"""Counts and successes, against quadrature, integrals and real tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from scipy.special import expit
from support.mixed_families import counts, investments

from hierfl.data.formula.federate import from_formula
from hierfl.inference import fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.objective.log_joint import log_joint
from hierfl.inference.run.result import Run
from hierfl.models.mixed_effects.likelihood.posterior import JointDraws
from hierfl.models.mixed_effects.likelihood.quadrature.newton import Problem
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.models.mixed_effects.model.names import by_short_name
from hierfl.models.mixed_effects.report.summary import effects_table
from hierfl.models.mixed_effects.search.loop import PopulationSearch


def run_of(df: pd.DataFrame, formula: str, family: str, **settings) -> Run:
    fed, design = from_formula(df, formula, family=family)  # type: ignore[arg-type]
    method = MixedEffects(design, **{"draws": 0, "population": "ml", **settings})
    return fit(method, fed, 100, dtype=torch.float64, progress=False, evaluate_every=100)


@pytest.mark.parametrize("nodes", [1, 3, 15])
@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_the_maximum_is_that_of_the_approximation_that_is_asked_for(family: str, nodes: int) -> None:
    """Laplace's among them: its nodes move with theta, and a derivative that did not know it would end elsewhere."""
    df = counts(family, places=12)
    run = run_of(df, "y ~ 1 + x + (1 | site)", family, nodes=nodes, tol=1e-8)
    method, fed, shared = run.fitted.method, run.fitted.federation, by_short_name(run.shared)
    batch = fed.batch(range(fed.clients))

    def height(beta: torch.Tensor, root: torch.Tensor) -> float:
        from hierfl.models.mixed_effects.likelihood.quadrature.integral import log_marginals

        with torch.no_grad():
            problem = Problem.from_batch(method, batch, {"beta": beta, "root": root})
            return float(log_marginals(problem, *problem.mode(torch.zeros(12, 1).double())).sum())

    best = height(shared["beta"], shared["root"])
    assert effects_table(run.fitted)[1]["log_likelihood"] == pytest.approx(best, abs=1e-9)
    for step in (-1e-3, 1e-3):
        assert height(shared["beta"], shared["root"] * (1 + step)) < best
        for k in range(2):
            assert height(shared["beta"] + step * torch.eye(2)[k], shared["root"]) < best


def test_a_fit_that_begins_far_off() -> None:
    """Counts of up to hundreds and a category: full Newton steps from the start would overshoot and not come back."""
    rng = np.random.default_rng(12)
    who = np.repeat(np.arange(12), 20)
    x, g = rng.normal(size=240), rng.integers(0, 3, 240)
    eta = 0.5 + 0.8 * x + np.array([0, 0.5, -0.5])[g] + 0.7 * rng.normal(size=12)[who]
    df = pd.DataFrame({"y": rng.poisson(np.exp(eta)), "x": x, "g": np.array(list("abc"))[g], "site": who})
    effects, numbers = effects_table(run_of(df, "y ~ x + g + (1 | site)", "poisson").fitted)
    assert numbers["off_maximum"] < 1e-6
    assert (np.abs(effects.estimate - [0.5, 0.8, 0.5, -0.5, 0.7]) < 4 * effects.standard_error).all()


@pytest.mark.parametrize(("level", "spread", "rows"), [(5, 2.0, 50), (8, 1.0, 200)])
def test_counts_of_thousands(level: float, spread: float, rows: int) -> None:
    """Posteriors a thousandth as wide as the prior, thousands of standard errors from the start."""
    rng = np.random.default_rng(12)
    who = np.repeat(np.arange(15), rows)
    x = rng.normal(size=len(who))
    y = rng.poisson(np.exp(level + 0.5 * x + spread * rng.normal(size=15)[who]))
    run = run_of(pd.DataFrame({"y": y, "x": x, "site": who}), "y ~ x + (1 | site)", "poisson", draws=100)
    effects, numbers = effects_table(run.fitted)
    assert numbers["off_maximum"] < 1e-6
    assert abs(effects.estimate[1] - 0.5) < 4 * effects.standard_error[1]


def test_a_mode_is_found_from_anywhere() -> None:
    df = counts("poisson", 8).assign(y=lambda d: d.y * 1000)
    fed, design = from_formula(df, "y ~ x + (1 + x | site)", family="poisson")
    method = MixedEffects(design)
    batch = fed.to("cpu", torch.float64).batch(range(8))
    root = method.covariance.matrix(torch.tensor([1.0, 0.3, 0.7]).double())
    for shift in (-8.0, 0.0, 8.0):
        values = {"beta": torch.tensor([shift, shift]).double(), "root": method.covariance.of_matrix(root)}
        problem = Problem.from_batch(method, batch, values)
        u, (factor,) = problem.mode(torch.zeros(8, 2).double())
        b = (u @ root.T)[None, :, None].requires_grad_()
        view = {"effects.beta": values["beta"], "effects.root": values["root"]}
        (slope,) = torch.autograd.grad(log_joint(method, batch, view, {"b": b}).sum(), b)
        away = torch.linalg.solve_triangular(factor, (slope[0, :, 0] @ root)[..., None], upper=False)
        assert away.abs().max() < 1e-6


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_the_random_effects_are_those_of_integrals(family: str) -> None:
    """At a population that is held: there our draws are of a Metropolis chain whose proposals are independent."""
    df = counts(family, places=5, seed=4)
    run = run_of(df, "y ~ 1 + x + (1 | site)", family, prior="fixed", sd_0=0.8)
    method, beta = run.fitted.method, run.shared["effects.beta"]
    design, fed = method.network, run.fitted.federation
    point = replace(method.settings, draws=4000)
    again = MixedEffects(design, **vars(point))
    begun = fit(again, fed, 100, dtype=torch.float64, progress=False, evaluate_every=100)
    repeated_draw = begun.shared["effects.draws"][:1].expand(4000, -1).clone()
    repeated_draw[:, :2] = beta
    rows = {k: v.unsqueeze(1) for k, v in begun.personal.items()}
    order = sorted(range(5), key=lambda j: -len(fed.train[j]))
    rows = {k: v[order] for k, v in rows.items()}
    chunk = ClientChunk(again, fed, order, 1, 0, {**begun.shared, "effects.draws": repeated_draw}, rows)
    ours = JointDraws(again).run(chunk, 0).values["b_draws"][..., 0].flatten(1).T.numpy()[:, np.argsort(order)]
    x = (df.x.values - design.fixed_units.centre[1]) / design.fixed_units.scale[1]
    fixed, b = design.offset + float(beta[0]) + float(beta[1]) * x, np.linspace(-5, 5, 4001)
    for j, site in enumerate(fed.ids):
        in_site = (df.site == site).to_numpy()
        y, eta = df.y.to_numpy()[in_site, None], fixed[in_site, None] + b
        terms = stats.bernoulli.logpmf(y, expit(eta)) if family == "binomial" else stats.poisson.logpmf(y, np.exp(eta))
        heights = terms.sum(0) - 0.5 * (b / 0.8) ** 2
        weight = np.exp(heights - heights.max())
        weight /= weight.sum()
        mean = weight @ b
        spread = np.sqrt(weight @ (b - mean) ** 2)
        # 4,000 draws: means to a sixtieth of a standard deviation
        assert abs(ours[:, j].mean() - mean) < 0.08 * spread
        assert abs(ours[:, j].std() / spread - 1) < 0.06


def test_random_slopes_of_counts() -> None:
    """Two random effects, and a correlation."""
    rng = np.random.default_rng(3)
    who = np.repeat(np.arange(40), rng.integers(5, 40, 40))
    x = rng.normal(size=len(who))
    b = rng.multivariate_normal([0, 0], [[0.5, 0.2], [0.2, 0.3]], 40)
    y = rng.poisson(np.exp(0.2 + 0.4 * x + b[who, 0] + b[who, 1] * x))
    df = pd.DataFrame({"y": y, "x": x, "site": who})
    effects, numbers = effects_table(run_of(df, "y ~ x + (x | site)", "poisson").fitted)
    assert list(effects.effect) == ["Intercept", "x", "sd(Intercept)", "sd(x)", "corr(Intercept, x)"]
    assert numbers["off_maximum"] < 1e-6
    truth = np.array([0.2, 0.4, 0.5**0.5, 0.3**0.5, 0.2 / 0.15**0.5])
    assert (np.abs(effects.estimate - truth) < 4 * effects.standard_error).all()
    finer = effects_table(run_of(df, "y ~ x + (x | site)", "poisson", nodes=15).fitted)[0]
    assert (np.abs(effects.estimate - finer.estimate) < 1e-3 * finer.standard_error).all()


def test_a_real_table_and_its_standard_errors() -> None:
    run, theirs = investments()
    effects, numbers = effects_table(run.fitted)
    assert (np.abs(effects.estimate[:3] - theirs.fe_params.values) < 1e-4 * theirs.bse_fe.values).all()
    # Theirs are of the curvature in all numbers; ours, as those of lme4, of that in the coefficients given the others.
    np.testing.assert_allclose(effects.standard_error[:3], theirs.bse_fe.values, rtol=3e-3)
    np.testing.assert_allclose(effects.estimate[3] ** 2, theirs.cov_re.values[0, 0], rtol=1e-3)
    np.testing.assert_allclose(effects.estimate[4] ** 2, theirs.scale, rtol=1e-4)
    assert numbers["log_likelihood"] == pytest.approx(theirs.llf, abs=1e-5)
    for j, firm in enumerate(run.fitted.federation.ids):
        spread = float(run.personal["b_root"][j, 0, 0])
        assert abs(float(run.personal["b_mean"][j, 0]) - theirs.random_effects[firm].iloc[0]) < 1e-3 * spread


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_a_point_far_away_can_be_sent(family: str) -> None:
    """Its height is low, and its square a number: a message without one would be refused, and the search would stand
    still for want of a client.
    """
    df = counts("poisson", 4)
    fed, design = from_formula(df, "y ~ 1 + x + (1 | site)", family=family)  # type: ignore[arg-type]
    method = MixedEffects(design)
    start = method.personal(InitialWeights.for_network(method.network, 0))
    rows = {k: v.expand(4, 1, *v.shape) for k, v in start.items()}
    search = PopulationSearch(method)
    points = torch.zeros(search.points, method.k).double()
    points[0, -1] = -200.0 if family == "gaussian" else 100.0
    shared = {"effects.phase": torch.tensor(2.0), "effects.points": points}
    chunk = ClientChunk(method, fed.to("cpu", torch.float64), range(4), 1, 0, shared, rows)
    for step in method.local()[:-1]:
        chunk = step.run(chunk, 0)
    heights = search.message([], chunk)["many"]
    assert (heights.abs() <= 2e100).all()
    assert (heights.abs() >= 1e99).any()
