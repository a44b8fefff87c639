"""Baselines whose clients have a posterior, a Gaussian or draws: pFedBayes and DG-LMC."""

from __future__ import annotations

import math

import pytest
import torch
from support.baselines import Quadratics, linear, rows_of
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import cross_entropy, softplus

from hierfl import Federation
from hierfl.data.batch import Batch
from hierfl.inference.objective.elbo import elbo
from hierfl.inference.objective.log_joint import log_joint
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.rules.gibbs import GibbsDraw
from hierfl.inference.server.rules.running import RunningMean
from hierfl.models import (
    DGLMC,
    PFedBayes,
)
from hierfl.nn.architecture import Architecture
from hierfl.ppl.plates import clients, sample

# -- pFedBayes ------------------------------------------------------------------------------------------------------


def gaussians(fed: Federation, net: Architecture) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(4)
    shape = (fed.clients, 1, net.d)
    return {
        "mu": 0.3 * torch.randn(shape, generator=rng, dtype=torch.float64),
        "pi": -1 + 0.3 * torch.randn(shape, generator=rng, dtype=torch.float64),
    }


@pytest.mark.parametrize("zeta", [1.0, 3.0])
def test_one_step_of_pfedbayes_weighs_the_divergence(zeta: float, small: Federation, net: Architecture) -> None:
    """q by E log p - zeta KL(q, prior), told with the same draws; then the copy of the prior by the divergence."""
    method = PFedBayes(net, epochs=1, lr=1e-4, prior_lr=1e-3, particles=3, sigma_0=0.5, zeta=zeta)
    start, q = rows_of(method, small), gaussians(small, net)
    chunk = start.put({k: v[start.clients] for k, v in q.items()})
    done = method.local()[0].run(chunk, 0)
    for row, j in enumerate(chunk.clients):
        x, y = small.examples(small.train[j])
        mu, pi = (chunk.values[k][row, 0].clone().requires_grad_() for k in q)
        prior = Normal(chunk.shared["w"], softplus(chunk.shared["spread"]))
        eps = chunk.take([row]).noise(0, 3).at(0).normal("w_j", None, mu.shape).view(3, -1)
        fits = [-cross_entropy(net(mu + softplus(pi) * e, x[None])[0], y, reduction="sum") for e in eps]
        height = sum(fits) / 3 - zeta * kl_divergence(Normal(mu, softplus(pi)), prior).sum()
        for name, value, slope in zip(q, (mu, pi), torch.autograd.grad(height, (mu, pi)), strict=True):
            assert torch.allclose(done.values[name][row, 0], value + 1e-4 * slope, rtol=1e-8, atol=1e-11), name
        w = chunk.shared["w"].clone().requires_grad_()
        after = Normal(done.values["mu"][row, 0], softplus(done.values["pi"][row, 0]))
        (slope,) = torch.autograd.grad(-zeta * kl_divergence(after, Normal(w, prior.stddev)).sum(), w)
        assert torch.allclose(done.values["w"][row, 0], w + 1e-3 * slope, rtol=1e-8, atol=1e-11)


def test_a_scale_that_model_and_guide_do_not_share_counts_all_the_same(small: Federation, net: Architecture) -> None:
    """3 log p(w_j | w) - log q(w_j) is -KL(q, p) + 2 log p: no weight is lost in the divergence."""

    class Tempered(PFedBayes):
        def guide(self, batch: Batch) -> None:
            with clients(batch):
                sample("w_j", self.posterior_of())

    method = Tempered(net, particles=3, sigma_0=0.5, zeta=3.0)
    start, q = rows_of(method, small), gaussians(small, net)
    chunk = start.put({k: v[start.clients] for k, v in q.items()})
    bounds = elbo(method, chunk.batch(), chunk.view, chunk.noise(0, 3).at(0))
    eps = chunk.noise(0, 3).at(0).normal("w_j", None, torch.Size([net.d]))[:, :, 0]
    for row, j in enumerate(chunk.clients):
        x, y = small.examples(small.train[j])
        own = Normal(chunk.values["mu"][row, 0], softplus(chunk.values["pi"][row, 0]))
        prior, draws = (
            Normal(chunk.shared["w"], softplus(chunk.shared["spread"])),
            own.mean + own.stddev * eps[:, row],
        )
        fits = torch.stack([-cross_entropy(net(w, x[None])[0], y, reduction="sum") for w in draws])
        expected = (fits + 2 * prior.log_prob(draws).sum(-1)).mean() - kl_divergence(own, prior).sum()
        assert torch.allclose(bounds[row], expected, rtol=1e-9)


def test_one_step_of_pfedbayes_is_a_gradient_step_on_the_elbo(small: Federation, net: Architecture) -> None:
    """zeta = 1: of q(w_j) at the clients; at the server of a shared diagonal prior, divided by their number."""
    lr = 0.01
    method = PFedBayes(net, epochs=1, lr=1e-4, prior_lr=lr, particles=3, sigma_0=0.5)
    start = rows_of(method, small)
    order = start.clients
    q = gaussians(small, net)
    chunk = start.put({k: v[order] for k, v in q.items()})
    (step,) = method.local()
    done = step.run(chunk, 0)
    for first, last in [(k, k + 1) for k in range(7)]:  # q: one step up the row's own ELBO
        part = chunk.part(first, last)
        leaves = {k: part.values[k].clone().requires_grad_() for k in q}
        noise = part.noise(0, 3).at(0)
        value = elbo(method, part.batch(), {**part.view, **leaves}, noise)
        for k, slope in zip(q, torch.autograd.grad(value.sum(), list(leaves.values())), strict=True):
            assert torch.allclose(done.values[k][first:last], part.values[k] + 1e-4 * slope, rtol=1e-7, atol=1e-10)
    prior = {k: chunk.shared[k].clone().requires_grad_() for k in ("w", "spread")}
    p = Normal(prior["w"], softplus(prior["spread"]))
    own = Normal(done.values["mu"], softplus(done.values["pi"]))
    slopes_of = torch.autograd.grad(-kl_divergence(own, p).sum(), list(prior.values()))
    for (name, value), slope in zip(prior.items(), slopes_of, strict=True):
        rule = method.exchange()[name]
        total = {k: v.sum(0) for k, v in rule.message([name], done).items()}
        new = rule.update({name: value.detach()}, total, AggregationContext(7, torch.tensor(7.0), 1, lambda names: {}))[
            name
        ]
        assert torch.allclose(new, value + lr * slope / 7, rtol=1e-9, atol=1e-12)


def test_many_local_steps_on_copies_of_a_prior_lose_what_lies_between_the_clients(
    small: Federation, net: Architecture
) -> None:
    """q held: single steps find sigma^2 = mean of sigma_j^2 + (mu_j - mu)^2; a copy alone ends at its own sigma_j."""
    q = gaussians(small, net)
    within, between = softplus(q["pi"]).square().mean((0, 1)), q["mu"].var((0, 1), unbiased=False)
    variances = {}
    for name, epochs, rounds in (("single", 1, 300), ("many", 300, 1)):
        method = PFedBayes(net, epochs=epochs, lr=1e-300, prior_lr=0.05, sigma_0=0.5)
        ready = Fit(method, small, Options(rounds=rounds, dtype=torch.float64, evaluate_every=10_000))
        ready.engine.store.personal = {k: v.squeeze(1).clone() for k, v in q.items()}
        for _ in range(rounds):
            ready.step()
        variances[name] = softplus(ready.state.shared["spread"]).square()
        assert torch.allclose(ready.state.shared["w"], q["mu"].mean((0, 1)), atol=0.01)
    assert torch.allclose(variances["single"], within + between, rtol=0.02)
    assert torch.allclose(variances["many"], softplus(q["pi"].mean((0, 1))).square(), rtol=0.02)
    assert ((variances["single"] - variances["many"]) > 0.8 * between).all()


# -- DG-LMC ---------------------------------------------------------------------------------------------------------


def gibbs_moments(quadratics: Quadratics, rho: float) -> tuple[Tensor, Tensor]:
    """Mean and covariance of w in the model w_j ~ N(w, rho^2 I), whatever has been integrated out exactly."""
    eye = torch.eye(3, dtype=torch.float64)
    Q = [torch.linalg.inv(torch.linalg.inv(A) + rho**2 * eye) for A in quadratics.A]
    modes = [torch.linalg.solve(A, b) for A, b in zip(quadratics.A, quadratics.b, strict=True)]
    precision = sum(Q)
    return torch.linalg.solve(precision, sum(q @ m for q, m in zip(Q, modes, strict=True))), torch.linalg.inv(precision)


def test_dg_lmcs_exact_moments_tend_to_the_pooled_posteriors(lines: Federation) -> None:
    quadratics = Quadratics(lines)
    pooled = quadratics.pooled(torch.ones(4, dtype=torch.float64))
    covariance = torch.linalg.inv(sum(quadratics.A))
    errors = []
    for rho in (0.02, 0.01, 0.005):
        # the log joint that the chains move on is the quadratic whose moments are taken
        method, w = DGLMC(linear(lines), rho=rho), torch.randn(3, generator=torch.Generator().manual_seed(1)).double()
        chunk = rows_of(method, lines, w=w)
        z = torch.randn((1, 4, 1, 3), generator=torch.Generator().manual_seed(2)).double().requires_grad_()
        height = log_joint(method, chunk.batch(), chunk.view, {"w_j": z})
        (slope,) = torch.autograd.grad(height.sum(), z)
        for row, j in enumerate(chunk.clients):
            at = z[0, row, 0].detach()
            expected = quadratics.b[j] - quadratics.A[j] @ at + (w - at) / rho**2
            assert torch.allclose(slope[0, row, 0], expected, rtol=1e-8)
        mean, spread = gibbs_moments(quadratics, rho)
        errors.append((float((mean - pooled).norm()), float((spread - covariance).norm())))
    for kind in (0, 1):  # with rho^2
        assert 3.5 < errors[0][kind] / errors[1][kind] < 4.5
        assert 3.5 < errors[1][kind] / errors[2][kind] < 4.5


def test_dg_lmcs_server_draws_what_makes_the_gibbs_sampler_exact(lines: Federation) -> None:
    """With exact draws at the clients the chain of w has the model's own moments."""
    rho, quadratics, rounds = 0.3, Quadratics(lines), 2400
    rule = GibbsDraw("w_j_draws", rho)
    rng = torch.Generator().manual_seed(0)
    eye = torch.eye(3, dtype=torch.float64)
    roots = [torch.linalg.inv(torch.linalg.cholesky(A + eye / rho**2)).T for A in quadratics.A]
    method = DGLMC(linear(lines), rho=rho, keep=3)
    chunk = rows_of(method, lines)
    w, chain = quadratics.pooled(torch.ones(4, dtype=torch.float64)), []
    for number in range(1, rounds + 1):
        means = quadratics.around(w, torch.full((4,), rho**-2, dtype=torch.float64))
        z = [m + r @ torch.randn(3, generator=rng, dtype=torch.float64) for m, r in zip(means, roots, strict=True)]
        last = torch.stack(z)[chunk.clients][:, None, None, None]
        rows = torch.cat([7 + last, 9 + last, last], 3)  # what was kept before is not what w is drawn given
        sent = rule.message(["w"], chunk.put({"w_j_draws": rows}))
        total = {k: v.sum(0) for k, v in sent.items()}
        context = AggregationContext(4, torch.tensor(4.0), number, lambda names: {}, seed=1)
        w = rule.update({"w": w}, total, context)["w"]
        chain.append(w)
    draws = torch.stack(chain)
    mean, covariance = gibbs_moments(quadratics, rho)
    batches = draws.view(60, -1, 3).mean(1)
    assert ((draws.mean(0) - mean).abs() < 4 * batches.std(0) / 60**0.5).all()
    squares = ((draws - mean).square()).view(60, -1, 3).mean(1)
    assert ((squares.mean(0) - covariance.diagonal()).abs() < 4 * squares.std(0) / 60**0.5).all()


def test_dg_lmcs_local_steps_are_the_papers(lines: Federation) -> None:
    """z <- (1 - g / rho^2) z + (g / rho^2) w - g grad(n f)(z) + sqrt(2 g) xi."""
    rho, gamma, quadratics = 0.4, 1e-3, Quadratics(lines)
    method = DGLMC(linear(lines), rho=rho, steps=1, keep=1, step_size=gamma)
    chunk = rows_of(method, lines)
    z = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    chunk = chunk.put({"w_j_draws": z[:, None, None, None]})
    done = method.local()[0].run(chunk, 0).values["w_j_draws"]
    for row, j in enumerate(chunk.clients):
        xi = chunk.take([row]).noise(0, 1).at(0).normal("w_j", None, torch.Size([3])).flatten()
        slope = quadratics.A[j] @ z[row] - quadratics.b[j]
        w = chunk.shared["w"]
        expected = (1 - gamma / rho**2) * z[row] + gamma / rho**2 * w - gamma * slope + math.sqrt(2 * gamma) * xi
        assert torch.allclose(done[row].flatten(), expected, rtol=1e-9)


def test_dg_lmc_predicts_with_the_mean_of_its_draws(lines: Federation) -> None:
    method = DGLMC(linear(lines), rho=0.3, steps=4, keep=2, step_size=1e-3, burn=3)
    ready = Fit(method, lines, Options(rounds=8, dtype=torch.float64, evaluate_every=100))
    seen = []
    for _ in range(8):
        seen.append(ready.state.shared["w"].clone())  # as each round begins
        ready.step()
    assert torch.allclose(ready.state.shared["mean"], torch.stack(seen[3:]).mean(0), rtol=1e-10)
    assert torch.equal(ready.fitted().shared["w"], ready.state.shared["mean"])


def test_rounds_that_were_skipped_do_not_enter_the_mean_of_draws() -> None:
    rule = RunningMean("w", burn=1)
    rule_state: dict[str, Tensor] = {}
    mean = torch.zeros(2)
    for number, value in ((1, 5.0), (2, 1.0), (7, 3.0)):
        context = AggregationContext(
            4, torch.tensor(4.0), number, lambda names: {}, rule_state, {"w": torch.full((2,), value)}
        )
        mean = rule.update({"mean": mean}, {}, context)["mean"]
    assert torch.allclose(mean, torch.full((2,), 2.0))
