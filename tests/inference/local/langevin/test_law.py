"""The law of the chains: stationary, exact with the Metropolis decision, and at a small step."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pyro.distributions import Normal
from support.chains import CHAINS, Slopes, chains_of, posterior
from support.federations import slopes

from hierfl import Federation, UserError
from hierfl.data.batch import Batch
from hierfl.inference import Langevin, Method
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.langevin.reference import Coordinates
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.objective.log_joint import log_joint
from hierfl.inference.state import State
from hierfl.nn.networks.build import architecture
from hierfl.ppl.empirical_draws import EmpiricalDraws
from hierfl.ppl.plates import clients, data, param, sample


class Alone(Method):
    """z_j ~ N(0, diag(s)^2), and data that say nothing: the posterior is the prior."""

    scales = (1.0,)
    count = 500

    def personal(self, start: InitialWeights) -> State:
        return {"z_draws": torch.zeros((CHAINS, self.count, len(self.scales)), dtype=torch.float64)}

    def model(self, batch: Batch) -> None:
        with clients(batch):
            sample("z", Normal(torch.zeros((), dtype=torch.float64), torch.tensor(self.scales).double()).to_event(1))
            with data(batch):
                sample("y", Normal(0.0, 1.0), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        z = param("z_draws")
        with clients(batch):
            sample("z", EmpiricalDraws(z, 1))


@pytest.mark.parametrize("gamma", [0.1, 0.5, 1.0])
def test_unadjusted_langevin_has_its_own_stationary_law(gamma: float) -> None:
    """Variance s^2 / (1 - gamma / (2 s^2)): fails where the noise is dropped or has another scale."""
    fed = slopes([3] * 200)
    method = Alone(architecture("linear", fed))
    z = chains_of(method, fed, Langevin(["z"], 600, gamma, burn=100, start="prior"))["z_draws"][..., 0]
    expected, steps = 1 / (1 - gamma / 2), z.shape[-1]
    # z follows an AR(1) with coefficient 1 - gamma: the variance of the mean of its squares
    phi = (1 - gamma) ** 2
    error = expected * math.sqrt(2 * (1 + phi) / (1 - phi) / (steps * 200 * CHAINS))
    assert abs(float(z.square().mean()) - expected) < 4 * error
    assert 4 * error < 0.05 * expected
    lag = (z[..., 1:] * z[..., :-1]).mean() / z.square().mean()
    assert abs(float(lag) - (1 - gamma)) < 0.02


@pytest.mark.slow
def test_metropolis_leaves_the_posterior_where_it_is(fed: Federation) -> None:
    method = Slopes(architecture("linear", fed, noise=0.5))
    chain = Langevin(["w"], 4500, 0.01, metropolis=True, burn=500, target=0.574, start="prior", sizes="size")
    done = chains_of(method, fed, chain)
    assert done["w_draws"].shape == (5, 1, CHAINS, 4000, 3)
    chance, size, wild = done["w_draws/stats"].unbind(-1)  # (5, 1, CHAINS, 4000) each
    moved = (done["w_draws"].diff(dim=-2) != 0).any(-1).double().mean(-1)
    assert torch.allclose(moved, chance.mean(-1), atol=0.04)  # a rate of 4000 coins
    assert (chance.mean(-1) > 0.4).all()
    assert (chance.mean(-1) < 0.75).all()
    assert torch.equal(size[..., 0], done["size"])
    assert not wild.any()
    assert len(done["size"].unique()) == 5 * CHAINS  # one for each row and chain
    import arviz as az

    for j in range(5):
        draws = done["w_draws"][j, 0]
        mean, cov = posterior(fed, j, 0.5, 1.3)
        effective = az.ess(az.convert_to_dataset({"w": draws.numpy()}))["w"].values
        assert (effective > 200).all()
        z = (draws.mean((0, 1)) - mean) / (cov.diagonal() / torch.as_tensor(effective)).sqrt()
        assert z.abs().max() < 4, j
        assert torch.allclose(draws.flatten(0, 1).var(0), cov.diagonal(), rtol=0.25), j


def test_without_the_decision_it_would_be_another_law() -> None:
    """At a step where the unadjusted chain's variance is doubled, the adjusted one's is right."""
    fed = slopes([2] * 40)
    method = Alone(architecture("linear", fed))
    loose = chains_of(method, fed, Langevin(["z"], 500, 1.0, start="prior"))["z_draws"]
    exact = chains_of(method, fed, Langevin(["z"], 500, 1.0, start="prior", metropolis=True))["z_draws"]
    assert abs(float(loose.var()) - 2) < 0.1
    assert abs(float(exact.var()) - 1) < 0.04


def test_the_minibatch_gradient_is_unbiased(fed: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over an epoch the minibatches' gradients average to the full one: n_j / b_j, the prior counted once."""
    gradients: list[torch.Tensor] = []

    def listen(*arguments: Any, **how: Any) -> torch.Tensor:
        value = log_joint(*arguments, **how)
        gradients.append(torch.autograd.grad(value.sum(), arguments[3]["w"], retain_graph=True)[0])
        return value

    monkeypatch.setattr("hierfl.inference.local.langevin.target.log_joint", listen)
    method = Slopes(architecture("linear", fed, noise=0.5))
    still = 1e-16  # such steps go nowhere
    chains_of(method, fed, Langevin(["w"], 1, still), who=[0])
    (full,) = gradients
    gradients.clear()
    chains_of(method, fed, Langevin(["w"], 7, still, batch=6), who=[0])
    sizes = [6] * 6 + [4]  # 40 examples
    assert torch.allclose(sum(g * n for g, n in zip(gradients, sizes, strict=True)) / 40, full, rtol=1e-6)


@pytest.mark.slow
def test_stochastic_gradients_reach_the_posterior_at_a_small_step(fed: Federation) -> None:
    method = Slopes(architecture("linear", fed, noise=0.5))
    chain = Langevin(["w"], 6000, 2e-4, batch=8, burn=1000, start="prior")
    draws = chains_of(method, fed, chain, who=[1])["w_draws"][0, 0]
    mean, cov = posterior(fed, 1, 0.5, 1.3)
    assert ((draws.mean((0, 1)) - mean) / cov.diagonal().sqrt()).abs().max() < 0.5
    assert torch.allclose(draws.flatten(0, 1).var(0), cov.diagonal(), rtol=0.6)


@pytest.mark.parametrize(
    ("metropolis", "leaps"),
    [(True, 1), (False, 4), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((False, 1), (True, 4)))],
)
def test_in_the_curvatures_metric_a_gaussian_posterior_is_exact(fed: Federation, metropolis: bool, leaps: int) -> None:
    """At steps of any size, adjusted or not: its share of drift and noise is solved exactly."""
    if leaps > 1 and not metropolis:
        with pytest.raises(UserError, match="need metropolis"):
            Langevin(["w"], 2, 0.5, precondition="curvature", leaps=leaps)
        return
    method = Slopes(architecture("linear", fed, noise=0.5))
    how = {"precondition": "curvature", "metropolis": metropolis, "leaps": leaps}
    chain = Langevin(["w"], 820, 0.1 if leaps > 1 else 0.8, start="prior", burn=20, **how)
    done = chains_of(method, fed, chain)
    if metropolis:
        assert torch.allclose(done["w_draws/stats"][..., 0], torch.ones(()).double(), atol=1e-9)
    for j in range(5):
        draws, (mean, covariance) = done["w_draws"][j, 0].flatten(0, 1), posterior(fed, j, 0.5, 1.3)
        sd = covariance.diagonal().sqrt()
        assert ((draws.mean(0) - mean) / sd).abs().max() < 0.12
        assert torch.allclose(torch.cov(draws.T) / torch.outer(sd, sd), covariance / torch.outer(sd, sd), atol=0.12)


def test_the_curvatures_metric_does_not_depend_on_where_a_chain_is(fed: Federation) -> None:
    """So that a population learned by such chains is not biased by what they have seen."""
    method = Slopes(architecture("linear", fed, noise=0.5))
    still = Langevin(["w"], 1, 1e-12, start="last", precondition="curvature")
    start = InitialWeights.for_network(method.network, 0)
    transformed = []
    for value in (0.0, 5.0):
        rows = {k: v.expand(5, 1, *v.shape).clone() for k, v in method.personal(start).items()}
        rows["w_draws"] = rows["w_draws"] + value
        chunk = ClientChunk(method, fed, [0, 3, 1, 2, 4], 1, 0, method.shared(start), rows)
        coordinates = Coordinates.nearest(chunk, "w")
        transformed.append(coordinates(torch.ones((1, 5, 1, 3)).double()))
        assert torch.allclose(coordinates.inv(transformed[-1]), torch.ones(()).double(), atol=1e-8)
        assert torch.allclose(still.run(chunk, 0).values["w_draws"], rows["w_draws"], atol=1e-4)
    assert torch.equal(*transformed)
