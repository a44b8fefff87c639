"""What FedPop learns: posteriors, the population, new clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from support.federations import slopes
from support.representatives import of_all
from torch import nn

from hierfl import Federation, UserError
from hierfl.data.synthetic import (
    effect_error,
    identified,
    log_likelihood,
    maximise,
    principal_angle_distance,
    synthetic,
)
from hierfl.inference import fit
from hierfl.models import FedAvg, FedPop, FedRep, PFedVEM
from hierfl.nn.architecture import Architecture
from hierfl.nn.functional import Network
from hierfl.nn.head import LinearHead
from hierfl.nn.networks.build import architecture
from hierfl.rng import generator


def regression(sizes: list[int]) -> tuple[Federation, Architecture]:
    fed = slopes(sizes, noise=0.5, seed=3)
    return fed, architecture("linear", fed, noise=0.5)


def test_the_last_chains_draw_from_the_analytic_posterior() -> None:
    import arviz as az

    fed, net = regression([12, 8, 3, 10, 2, 6])
    method = FedPop(net, step_size=0.03, final_chains=8, final_steps=240, final_keep=180, lr=0.05, sigma_0=1.0)
    run = fit(method, fed, rounds=3, dtype=torch.float64, progress=False, evaluate_every=3)
    mu, sigma = run.shared["mu"], run.shared["log_sigma"].exp()
    data = run.posterior()
    assert dict(data.posterior.sizes) == {"chain": 8, "draw": 180, "client": 6, "z_dim_0": 3}
    effective, rhat = az.ess(data)["z"].values, az.rhat(data)["z"].values
    assert (rhat < 1.02).all()
    for j in range(6):
        x, y = fed.examples(fed.train[j])
        x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
        cov = torch.linalg.inv(x.T @ x / 0.25 + torch.eye(3, dtype=x.dtype) / sigma**2)
        mean = cov @ (x.T @ y / 0.25 + mu / sigma**2)
        draws = run.personal["z_draws"][j]
        error = (cov.diagonal() / torch.as_tensor(effective[j])).sqrt()
        assert ((draws.mean((0, 1)) - mean).abs() < 4 * error).all(), j
        spread = draws.flatten(0, 1).var(0) / cov.diagonal()
        assert ((spread - 1).abs() < 4 * (2 / torch.as_tensor(effective[j])).sqrt() + 0.02).all(), j


@pytest.mark.slow
def test_the_population_is_the_marginal_likelihoods() -> None:
    """A linear-Gaussian model: mu and sigma against the maximum of the exact marginal likelihood."""
    fed, net = regression([12] * 60)
    parts = []
    for j in range(60):
        x, y = fed.examples(fed.train[j])
        parts.append((torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1), y))
    mu = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    log_sigma = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([mu, log_sigma], max_iter=200, tolerance_grad=1e-10)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for x, y in parts:
            cov = x @ x.T * (2 * log_sigma).exp() + 0.25 * torch.eye(len(y))
            total = total - torch.distributions.MultivariateNormal(x @ mu, cov).log_prob(y)
        total.backward()
        return total

    optimizer.step(loss)
    method = FedPop(
        net, kernel="metropolis", step_size=0.02, chains=4, burn=2, lr=0.1, lr_decay=0.98, sigma_0=0.6, final_steps=0
    )
    run = fit(method, fed, rounds=250, chunk=60, dtype=torch.float64, progress=False)
    assert torch.allclose(run.shared["mu"], mu.detach(), atol=0.02)
    assert torch.allclose(run.shared["log_sigma"], log_sigma.detach(), atol=0.02)


@pytest.mark.slow
@pytest.mark.cpu(4, "what a learned spread is beside quadrature, in the only quick test of it")
@pytest.mark.parametrize("kernel", of_all(["metropolis", "unadjusted"], ["metropolis"], str))
def test_in_the_curvatures_metric_the_learned_spread_is_that_of_quadrature(kernel: str) -> None:
    """A logistic model of one number: nothing that the chains have seen enters their metric, so nothing is biased."""
    rng = np.random.default_rng(5)
    who = np.repeat(np.arange(100), 6)
    y = rng.random(600) < 1 / (1 + np.exp(-(0.4 + 1.2 * rng.normal(size=100))[who]))
    fed = Federation.from_arrays(np.ones((600, 1)), y.astype(int), who, test=0.0, validation=0.0)
    ones = np.bincount(who, y)[:, None]
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)

    def minus(at: np.ndarray) -> float:
        logit = at[0] + 2**0.5 * np.exp(at[1]) * nodes  # of the difference of two heads
        likelihood = -ones * np.logaddexp(0, -logit) - (6 - ones) * np.logaddexp(0, logit)
        return -float(np.log(np.exp(likelihood) @ weights).sum())

    exact = minimize(minus, np.zeros(2)).x
    net = Architecture(Network(nn.Identity()), LinearHead(1, 2, bias=False))
    method = FedPop(
        net, kernel=kernel, precondition="curvature", step_size=0.8, chains=2, lr=0.15, lr_decay=0.93, sigma_0=0.3,
        final_steps=0,
    )  # fmt: skip
    run = fit(method, fed.to(dtype=torch.float64), 60, dtype=torch.float64, progress=False, evaluate_every=60)
    assert float(run.shared["mu"].diff()) == pytest.approx(exact[0], abs=0.04)
    assert float(run.shared["log_sigma"].exp()) == pytest.approx(np.exp(exact[1]), rel=0.05)


@pytest.mark.slow
def test_the_exact_marginal_likelihoods_maximum_is_reached() -> None:
    """FedPop's synthetic data: in everything that is identified below 1e-3 relative, the scores having no noise."""
    fed, made = synthetic(0, clients=40, k=8)
    net = architecture("projection:2", fed, made.noise)
    method = FedPop(
        net, control_variates=True, kernel="metropolis", precondition="curvature", step_size=0.5, chains=8, sigma_0=1.0,
        steps=6, burn=1, lr=0.05, base_lr=0.03, lr_decay=0.988, beta2=0.97, final_steps=0,
    )  # fmt: skip
    run = fit(method, fed, 500, chunk=40, dtype=torch.float64, progress=False, evaluate_every=500)
    estimate = run.shared["base.1.weight"].T, run.shared["mu"], run.shared["log_sigma"].exp()
    best = maximise(fed, made.phi, estimate[1], estimate[2], made.noise)
    ours, theirs = identified(*estimate), identified(*best)
    for name in ours:
        assert float((ours[name] - theirs[name]).norm() / theirs[name].norm()) < 1e-3, name
    heights = [float(log_likelihood(fed, *v, made.noise)) for v in (estimate, best)]
    assert abs(heights[0] / heights[1] - 1) < 1e-6
    assert principal_angle_distance(made.phi, estimate[0]) < 0.1
    rotate = torch.linalg.qr(torch.randn((2, 2), generator=generator("rotate"), dtype=torch.float64))[0]
    assert principal_angle_distance(estimate[0] @ rotate * 3, estimate[0]) < 1e-7
    assert effect_error(made.phi @ rotate, made.z @ rotate, made) < 1e-12


@pytest.mark.slow
def test_a_matrix_as_fixed_effect_is_found_up_to_rotation() -> None:
    """y = z_j^T phi^T x: the span of phi, which is what the data identify."""
    rng = generator("synthetic")
    phi = torch.linalg.qr(torch.randn((6, 2), generator=rng, dtype=torch.float64))[0]
    z = torch.randn((40, 2), generator=rng, dtype=torch.float64)
    x = torch.randn((40, 20, 6), generator=rng, dtype=torch.float64)
    y = (x @ phi @ z[..., None]).squeeze(-1) + 0.1 * torch.randn((40, 20), generator=rng, dtype=torch.float64)
    who = torch.arange(40).repeat_interleave(20)
    fed = Federation.from_arrays(x.flatten(0, 1).numpy(), y.flatten().numpy(), who.numpy(), test=0.0, task="regression")
    with torch.random.fork_rng():
        net = Architecture(Network(nn.Linear(6, 2, bias=False), weights="drawn"), LinearHead(2, 1), noise=0.1)
    method = FedPop(net, step_size=3e-4, sigma_0=1.0, base_lr=0.05, lr=0.05, lr_decay=0.96, final_steps=0)
    run = fit(method, fed, rounds=100, chunk=40, dtype=torch.float64, progress=False, evaluate_every=100)
    basis = torch.linalg.qr(run.shared["base.weight"].T)[0]
    distance = (basis @ basis.T - phi @ phi.T).norm()
    assert distance < 0.02


def places(sizes: list[int], seed: int = 7) -> Federation:
    """y_ij ~ N(z_j, 1), z_j ~ N(1.5, 0.7^2): x is one, and the head is z."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(len(sizes)), sizes)
    y = (1.5 + 0.7 * rng.normal(size=len(sizes)))[who] + rng.normal(size=len(who))
    return Federation.from_arrays(np.ones((len(who), 1)), y, who, test=0.0, task="regression").to(dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [0, 8])
def test_an_energy_with_a_second_chain_recovers_a_gaussian_population(hidden: int) -> None:
    """mu and sigma against the exact maximum; with a network in E, mean and spread of what the second chain draws."""
    fed = places([8] * 100)
    net = Architecture(Network(nn.Identity()), LinearHead(1, 1, bias=False), noise=1.0)
    means = torch.stack([fed.examples(index)[1].mean() for index in fed.train])
    mu, variance = means.mean(), means.var(unbiased=False) - 1 / 8  # equal sizes: the maximum of the marginal
    method = FedPop(
        net, population="energy", energy_hidden=hidden, kernel="metropolis", step_size=0.1, steps=12, burn=2, chains=4,
        lr=0.1, lr_decay=0.97, beta2=0.97, sigma_0=1.5, final_steps=400, final_keep=100,
    )  # fmt: skip
    run = fit(method, fed, 120, chunk=100, dtype=torch.float64, progress=False, evaluate_every=120)
    if not hidden:
        assert float(run.shared["mu"] - mu) == pytest.approx(0, abs=0.03)
        assert float(run.shared["log_sigma"].exp()) == pytest.approx(float(variance.sqrt()), rel=0.04)
    new = run.personal["z_new_draws"].flatten()
    assert float(new.mean() - mu) == pytest.approx(0, abs=0.05)
    assert float(new.std()) == pytest.approx(float(variance.sqrt()), rel=0.07)
    prediction = run.predict_new_client(np.ones((1, 1)), draws=2000)[0]
    assert float(prediction[0] - mu) == pytest.approx(0, abs=0.08)
    assert float(prediction[1]) == pytest.approx(float((1 + variance).sqrt()), rel=0.05)


def test_a_new_client_learns_from_a_few_examples() -> None:
    """After a chain on its own examples the analytic posterior at the fitted population; before it the population's."""
    fed, net = regression([15] * 6)
    method = FedPop(
        net, kernel="metropolis", precondition="curvature", step_size=0.8, chains=4, lr=0.1, lr_decay=0.97, sigma_0=1.0,
        final_steps=160, final_keep=120, final_chains=16,
    )  # fmt: skip
    run = fit(method, fed, 5, dtype=torch.float64, progress=False, evaluate_every=5)
    mu, sigma = run.shared["mu"], run.shared["log_sigma"].exp()
    few = torch.randn((3, 2), generator=generator("few"), dtype=torch.float64)
    y = few @ torch.tensor([2.0, -1.0]).double() + 0.3
    x = torch.cat([few, torch.ones(3, 1).double()], 1)
    cov = torch.linalg.inv(x.T @ x / 0.25 + torch.eye(3).double() / sigma**2)
    mean = cov @ (x.T @ y / 0.25 + mu / sigma**2)
    at = torch.tensor([[1.0, 0.5, 1.0]]).double()
    prediction = run.predict_new_client(at[:, :2], draws=4000, given=(few, y))[0]
    wanted = float((at @ cov @ at.T + 0.25).sqrt())
    assert float(prediction[0]) == pytest.approx(float(at @ mean), abs=0.05 * wanted)
    assert float(prediction[1]) == pytest.approx(wanted, rel=0.05)
    before = run.predict_new_client(at[:, :2], draws=4000)[0]
    assert float(before[1]) > 1.5 * wanted
    assert torch.equal(run.shared["mu"], mu)
    for given, words in (
        ((few, y[:2]), "as many targets"),
        ((few[:, :1], y), "inputs have shape"),
        ((few, y / 0), "NaN or infinite"),
    ):
        with pytest.raises(UserError, match=words):
            run.predict_new_client(at[:, :2], given=given)


def test_newcomers_of_other_methods(small: Federation, net: Architecture) -> None:
    x, y = small.examples(small.train[0])
    for method, own in ((PFedVEM(net), True), (FedRep(net), True), (FedAvg(net), False)):
        run = fit(method, small, 5, dtype=torch.float64, progress=False, evaluate_every=5)
        if not own:
            with pytest.raises(UserError, match="nothing that a new client could learn"):
                run.predict_new_client(x, given=(x, y))
            continue
        little, much = (run.predict_new_client(x, draws=0, given=(x, y), rounds=k) for k in (1, 20))
        assert much.gather(1, y[:, None]).log().mean() > little.gather(1, y[:, None]).log().mean() + 0.01
    with pytest.raises(UserError, match="whole numbers from 0 to 2"):
        run.predict_new_client(x, given=(x, y + 3))
