"""Counts and successes, against quadrature, NUTS and real tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import chi2, norm
from support.mixed_families import counts, hessian, investments, quadrature

from hierfl.data.formula.federate import from_formula
from hierfl.inference import fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.objective.log_joint import log_joint
from hierfl.inference.run.result import Run
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.models.mixed_effects.newton import PosteriorMode
from hierfl.models.mixed_effects.quadrature import marginal_log_likelihood
from hierfl.models.mixed_effects.summary import effects_table


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_the_fit_is_that_of_adaptive_quadrature(family: str) -> None:
    """Fixed effects, sigma, marginal likelihood and standard errors; the Monte-Carlo error over seeds is a tenth."""
    df = counts(family)
    best = minimize(quadrature, [0, 0.5, -0.3], args=(df, family), method="BFGS", options={"gtol": 1e-7})
    wanted = np.sqrt(np.diag(np.linalg.inv(hessian(df, family, best.x))))
    fed, design = from_formula(df, "y ~ 1 + x + (1 | site)", family=family)
    found, runs = [], []
    for seed in range(3):
        method = MixedEffects(design, draws=100 if seed == 0 else 0)
        run = fit(method, fed, 60, chunk=fed.clients, dtype=torch.float64, progress=False, seed=seed, evaluate_every=60)
        found.append(np.r_[run.shared["effects.beta"].numpy(), run.shared["effects.log_sd"].numpy()])
        runs.append(run)
    off = np.array(found) - best.x
    assert (np.abs(off[:, :2]) < 0.05 * wanted[:2]).all()
    assert (np.abs(np.expm1(off[:, 2])) < 0.02).all()
    monte_carlo = np.std(found, axis=0, ddof=1)
    assert (monte_carlo[:2] < 0.05 / 3 * wanted[:2]).all()
    assert monte_carlo[2] < 0.02 / 3
    assert abs(marginal_log_likelihood(runs[0]) + best.fun) < 0.01
    table, numbers = effects_table(runs[0].fitted)
    np.testing.assert_allclose(table.standard_error, wanted * [1, 1, table.estimate[2]], rtol=0.02)
    true_distance = np.sqrt(off[0] @ hessian(df, family, best.x) @ off[0])
    assert numbers["off_maximum"] == pytest.approx(true_distance, abs=0.005)


def test_a_fit_that_begins_far_off() -> None:
    """Counts of up to hundreds and a category: full Newton steps from the start would overshoot and not come back."""
    rng = np.random.default_rng(12)
    who = np.repeat(np.arange(12), 20)
    x, g = rng.normal(size=240), rng.integers(0, 3, 240)
    eta = 0.5 + 0.8 * x + np.array([0, 0.5, -0.5])[g] + 0.7 * rng.normal(size=12)[who]
    df = pd.DataFrame({"y": rng.poisson(np.exp(eta)), "x": x, "g": np.array(list("abc"))[g], "site": who})
    fed, design = from_formula(df, "y ~ x + g + (1 | site)", family="poisson")
    run = fit(MixedEffects(design, draws=0), fed, 60, chunk=12, dtype=torch.float64, progress=False, evaluate_every=60)
    table, numbers = effects_table(run.fitted)
    assert numbers["off_maximum"] < 0.05 / 3
    assert (np.abs(table.estimate - [0.5, 0.8, 0.5, -0.5, 0.7]) < 4 * table.standard_error).all()


@pytest.mark.parametrize(("level", "spread", "rows"), [(5, 2.0, 50), (8, 1.0, 200)])
def test_counts_of_thousands(level: float, spread: float, rows: int) -> None:
    """Posteriors a thousandth as wide as the prior, thousands of standard errors from the start."""
    rng = np.random.default_rng(12)
    who = np.repeat(np.arange(15), rows)
    x = rng.normal(size=len(who))
    y = rng.poisson(np.exp(level + 0.5 * x + spread * rng.normal(size=15)[who]))
    fed, design = from_formula(pd.DataFrame({"y": y, "x": x, "site": who}), "y ~ x + (1 | site)", family="poisson")
    run = fit(MixedEffects(design, draws=100), fed, 30, chunk=15, dtype=torch.float64, progress=False)
    table, numbers = effects_table(run.fitted)
    assert numbers["off_maximum"] < 1e-3
    assert abs(table.estimate[1] - 0.5) < 4 * table.standard_error[1]
    import arviz as az

    assert float(az.rhat(run.posterior().posterior)["b"].max()) < 1.03


def test_a_mode_is_found_from_anywhere() -> None:
    """And the chains keep their places beside it."""
    df = counts("poisson", 8).assign(y=lambda d: d.y * 1000)
    fed, design = from_formula(df, "y ~ x + (1 + x | site)", family="poisson")
    method = MixedEffects(design)
    for shift in (-8.0, 0.0, 8.0):
        seeded = InitialWeights.of(method.network, 0)
        start = {k: v.double() for k, v in method.shared(seeded).items()}
        start["effects.beta"] = start["effects.beta"] + shift
        rows = {k: v[None, None].expand(8, 1, *v.shape) for k, v in method.personal(seeded).items()}
        chunk = ClientChunk(method, fed.to("cpu", torch.float64), list(range(8)), 1, 0, start, rows)
        once = PosteriorMode(method).run(chunk, 0)
        again = PosteriorMode(method).run(once, 0)
        b = once.values["b_mean"].transpose(0, 1).unsqueeze(2).clone().requires_grad_()  # (1, S, 1, q)
        height = log_joint(method, chunk.batch(), chunk.view, {"b": b.reshape(1, 8, 1, 2)})
        (slope,) = torch.autograd.grad(height.sum(), b)
        root = once.values["b_root"].squeeze(1)
        assert (slope.reshape(8, 1, 2) @ root).abs().max() < 1e-6
        for name in ("b_mean", "b_root", "b_draws"):
            assert torch.allclose(once.values[name], again.values[name], rtol=1e-9, atol=1e-9)
        gap = (once.values["b_draws"] - once.values["b_mean"][:, :, None, None]).flatten(1, 3)
        started = (rows["b_draws"] / method.first_sd()).flatten(1, 3)
        assert torch.allclose(torch.linalg.solve(root, gap.mT).mT, started, atol=1e-9)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_the_random_effects_are_those_of_nuts(family: str) -> None:
    import pyro
    from pyro.infer import MCMC, NUTS

    df = counts(family, places=5, seed=4)
    fed, design = from_formula(df, "y ~ 1 + x + (1 | site)", family=family)
    method = MixedEffects(design, prior="fixed", sd_0=0.8, chains=10, draws=400)
    run = fit(method, fed, 30, dtype=torch.float64, progress=False, evaluate_every=30)
    beta = run.shared["effects.beta"]
    where = torch.tensor([fed.ids.index(s) for s in df.site])
    x, y = torch.tensor(df.x.values), torch.tensor(df.y.values)

    def plain() -> None:
        with pyro.plate("places", 5):
            b = pyro.sample("b", pyro.distributions.Normal(torch.zeros(()).double(), 0.8))
        eta = beta[0] + beta[1] * x + b[where]
        d = pyro.distributions
        with pyro.plate("rows", len(y)):
            pyro.sample("y", d.Bernoulli(logits=eta) if family == "binomial" else d.Poisson(eta.exp()), obs=y)

    with torch.random.fork_rng(), pyro.get_param_store().scope():
        torch.manual_seed(0)
        chain = MCMC(NUTS(plain), num_samples=1500, warmup_steps=200, disable_progbar=True)
        chain.run()
        theirs = chain.get_samples()["b"].numpy()
    ours = run.personal["b_draws"][..., 0].flatten(1).T.numpy()
    spread = theirs.std(0)
    # 1,500 correlated draws against 4,000: means to about a twentieth of a standard deviation
    assert np.abs((ours.mean(0) - theirs.mean(0)) / spread).max() < 0.13
    assert np.abs(ours.std(0) / spread - 1).max() < 0.1


def test_random_slopes_of_counts() -> None:
    """Two random effects: the likelihood is at its maximum in every direction, by a quadrature in two dimensions."""
    rng = np.random.default_rng(3)
    who = np.repeat(np.arange(40), rng.integers(5, 40, 40))
    x = rng.normal(size=len(who))
    b = rng.multivariate_normal([0, 0], [[0.5, 0.2], [0.2, 0.3]], 40)
    y = rng.poisson(np.exp(0.2 + 0.4 * x + b[who, 0] + b[who, 1] * x))
    df = pd.DataFrame({"y": y, "x": x, "site": who})
    fed, design = from_formula(df, "y ~ x + (x | site)", family="poisson")
    run = fit(MixedEffects(design, draws=50), fed, 60, chunk=40, dtype=torch.float64, progress=False, evaluate_every=60)
    table, numbers = effects_table(run.fitted)
    assert list(table.effect) == ["Intercept", "x", "sd(Intercept)", "sd(x)", "corr(Intercept, x)"]
    assert numbers["off_maximum"] < 0.03
    truth = np.array([0.2, 0.4, 0.5**0.5, 0.3**0.5, 0.2 / 0.15**0.5])
    assert (np.abs(table.estimate - truth) < 4 * table.standard_error).all()


def test_a_real_table_and_its_standard_errors() -> None:
    run, theirs = investments()
    table, numbers = effects_table(run.fitted)
    assert (np.abs(table.estimate[:3] - theirs.fe_params.values) < 0.05 * theirs.bse_fe.values).all()
    np.testing.assert_allclose(table.standard_error[:3], theirs.bse_fe.values, rtol=0.02)
    np.testing.assert_allclose(table.estimate[3] ** 2, theirs.cov_re.values[0, 0], rtol=0.02)
    np.testing.assert_allclose(table.estimate[4] ** 2, theirs.scale, rtol=0.02)
    assert abs(numbers["marginal_log_likelihood"] - theirs.llf) < 0.01
    assert numbers["off_maximum"] < 1e-6
    for j, firm in enumerate(run.fitted.federation.ids):
        spread = float(run.personal["b_root"][j, 0, 0])
        assert abs(float(run.personal["b_mean"][j, 0]) - theirs.random_effects[firm].iloc[0]) < 0.05 * spread


def frozen(random: str = "1 + x", draws: int = 400) -> Run:
    rng = np.random.default_rng(5)
    who = np.repeat(np.arange(30), rng.integers(2, 61, 30))
    x = rng.normal(2, 1.5, len(who))
    b = rng.multivariate_normal([0, 0], [[1, 0.3], [0.3, 0.5]], 30)
    y = 3 + 0.7 * x + b[who, 0] + b[who, 1] * x + 0.8 * rng.normal(size=len(who))
    df = pd.DataFrame({"y": y, "x": x, "site": who})
    fed, design = from_formula(df, f"y ~ 1 + x + ({random} | site)")
    return fit(
        MixedEffects(design, draws=draws), fed, 60, chunk=30, dtype=torch.float64, progress=False, evaluate_every=60
    )


def test_chains_draw_from_the_analytic_posterior() -> None:
    """Step sizes frozen after burn-in: z-scores of all means and variances within a family-wise 1 % bound."""
    import arviz as az

    run = frozen()
    data = run.posterior()
    assert dict(data.posterior.sizes) == {"chain": 10, "draw": 400, "client": 30, "b_dim_0": 2}
    assert float(az.rhat(data)["b"].max()) < 1.02
    assert float(az.ess(data)["b"].min()) > 1600
    mean_error, square = az.mcse(data, method="mean")["b"].values, []
    draws = data.posterior["b"].values  # (chain, draw, client, 2)
    means, roots = run.personal["b_mean"].numpy(), run.personal["b_root"].numpy()
    variance = np.einsum("jab,jab->ja", roots, roots)
    z = (draws.mean((0, 1)) - means) / mean_error
    gaps = az.convert_to_dataset({"v": (draws - means) ** 2})
    square = (gaps["v"].mean(("chain", "draw")).values - variance) / az.mcse(gaps, method="mean")["v"].values
    scores = np.abs(np.concatenate([z.ravel(), square.ravel()]))
    assert scores.max() < norm.isf(0.01 / 2 / len(scores))
    # and as a family they are standard normal: neither too large nor, by errors overstated, too small
    assert chi2.ppf(0.005, len(scores)) < (scores**2).sum() < chi2.ppf(0.995, len(scores))
