"""Langevin dynamics against laws that are known: stationary variances, analytic posteriors, exact limits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from pyro.distributions import Bernoulli, Gamma, LogNormal, Normal
from support.federations import slopes

from hierfl import Federation, UserError
from hierfl.data.batch import Batch
from hierfl.inference import Gradient, Langevin, Method, fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.clients.gradients import elbo_gradient
from hierfl.inference.local.optimizers import adam
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.objective.log_joint import log_joint
from hierfl.inference.state import State
from hierfl.nn.networks.build import architecture
from hierfl.ppl.empirical_draws import EmpiricalDraws
from hierfl.ppl.plates import clients, data, param, sample
from hierfl.rng import generator

CHAINS = 4


class Slopes(Method):
    """y = w_j . (x, 1) + noise, w_j ~ N(mu, tau^2 I), by whatever chain it is given."""

    chain: Any = Langevin(["w"], 1, 1e-3)
    kept, chains = 1, CHAINS

    def shared(self, start: InitialWeights) -> State:
        return {"mu": torch.zeros(self.network.head.d, dtype=torch.float64)}

    def personal(self, start: InitialWeights) -> State:
        empty = torch.zeros(self.chains, dtype=torch.float64)
        return {
            "w_draws": empty[:, None, None].expand(-1, self.kept, self.network.head.d),
            "size": empty,
            "rate": empty,
        }

    def model(self, batch: Batch) -> None:
        with clients(batch):
            w = sample("w", Normal(param("mu"), 1.3).to_event(1))
            with data(batch):
                sample("y", self.network.likelihood(self.network.head(w, batch.x)), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        w = param("w_draws")
        with clients(batch):
            sample("w", EmpiricalDraws(w, 1))

    def local(self) -> list:
        return [self.chain]


def chains_of(method: Method, fed: Federation, chain: Langevin, seed: int = 0, who: list[int] | None = None) -> State:
    """What the chain keeps, for all clients: {name: (S, 1, C, kept, *event)}."""
    who = sorted(range(fed.clients) if who is None else who, key=lambda j: -len(fed.train[j]))
    start = InitialWeights.of(method.network, 0)
    rows = {k: v.expand(len(who), 1, *v.shape) for k, v in method.personal(start).items()}
    chunk = ClientChunk(method, fed, who, 1, seed, method.shared(start), rows)
    done = chain.run(chunk, 0).values
    back = [who.index(j) for j in sorted(who)]
    return {k: v[back] for k, v in done.items()}


def posterior(fed: Federation, j: int, noise: float, prior: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and covariance of w_j given mu = 0."""
    x, y = fed.examples(fed.train[j])
    x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    cov = torch.linalg.inv(x.T @ x / noise**2 + torch.eye(x.shape[1], dtype=x.dtype) / prior**2)
    return cov @ x.T @ y / noise**2, cov


@pytest.fixture
def fed() -> Federation:
    return slopes([40, 12, 3, 25, 1])


def test_log_joint_is_the_sum_of_its_terms_for_each_particle(fed: Federation) -> None:
    method = Slopes(architecture("linear", fed, noise=0.5))
    w = torch.randn((3, 2, 1, 3), generator=generator("w"), dtype=torch.float64)
    batch = fed.batch([0, 2])
    got = log_joint(method, batch, {"mu": torch.ones(3, dtype=torch.float64)}, {"w": w})
    for k in range(3):
        for row, j in enumerate((0, 2)):
            x, y = fed.examples(fed.train[j])
            own = w[k, row, 0]
            want = (
                Normal(torch.ones(3).double(), 1.3).log_prob(own).sum()
                + Normal(x @ own[:2] + own[2], 0.5).log_prob(y).sum()
            )
            assert torch.isclose(got[k, row], want, rtol=1e-12)
    with pytest.raises(UserError, match="unknown latent 'v'"):
        log_joint(method, batch, {"mu": torch.zeros(3)}, {"w": w, "v": w})


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


def test_metropolis_leaves_the_posterior_where_it_is(fed: Federation) -> None:
    method = Slopes(architecture("linear", fed, noise=0.5))
    chain = Langevin(["w"], 4500, 0.01, metropolis=True, burn=500, target=0.574, start="prior", sizes="size")
    done = chains_of(method, fed, chain)
    assert done["w_draws"].shape == (5, 1, CHAINS, 4000, 3)
    chance, size, wild = done["w_draws/stats"].unbind(-1)  # (5, 1, CHAINS, 4000) each
    moved = (done["w_draws"].diff(dim=-2) != 0).any(-1).double().mean(-1)
    assert torch.allclose(moved, chance.mean(-1), atol=0.04)  # (a rate of 4000 coins)
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
    found: list[torch.Tensor] = []

    def listen(*arguments: Any, **how: Any) -> torch.Tensor:
        value = log_joint(*arguments, **how)
        found.append(torch.autograd.grad(value.sum(), arguments[3]["w"], retain_graph=True)[0])
        return value

    monkeypatch.setattr("hierfl.inference.local.langevin.target.log_joint", listen)
    method = Slopes(architecture("linear", fed, noise=0.5))
    still = 1e-16  # such steps go nowhere
    chains_of(method, fed, Langevin(["w"], 1, still), who=[0])
    (full,) = found
    found.clear()
    chains_of(method, fed, Langevin(["w"], 7, still, batch=6), who=[0])
    sizes = [6] * 6 + [4]  # 40 examples
    assert torch.allclose(sum(g * n for g, n in zip(found, sizes, strict=True)) / 40, full, rtol=1e-6)


def test_stochastic_gradients_reach_the_posterior_at_a_small_step(fed: Federation) -> None:
    method = Slopes(architecture("linear", fed, noise=0.5))
    chain = Langevin(["w"], 6000, 2e-4, batch=8, burn=1000, start="prior")
    draws = chains_of(method, fed, chain, who=[1])["w_draws"][0, 0]
    mean, cov = posterior(fed, 1, 0.5, 1.3)
    assert ((draws.mean((0, 1)) - mean) / cov.diagonal().sqrt()).abs().max() < 0.5
    assert torch.allclose(draws.flatten(0, 1).var(0), cov.diagonal(), rtol=0.6)


@pytest.mark.parametrize("kind", ["rms", "fisher", "full"])
def test_a_preconditioner_evens_out_scales(kind: str) -> None:
    class Uneven(Alone):
        scales = (0.01, 1.0, 10.0)
        count = 1000

    fed = slopes([2] * 20)
    method = Uneven(architecture("linear", fed))
    how = {"metropolis": True, "burn": 1000, "target": 0.574, "start": "prior"}
    plain = chains_of(method, fed, Langevin(["z"], 2000, 1e-4, **how))["z_draws"]
    helped = chains_of(method, fed, Langevin(["z"], 2000, 1e-4, precondition=kind, **how))["z_draws"]

    def jump(z: torch.Tensor) -> float:  # along the widest coordinate
        return float((z[..., 1:, 2] - z[..., :-1, 2]).square().mean())

    assert jump(helped) > {"rms": 5, "fisher": 1e4, "full": 1e4}[kind] * jump(plain)
    if kind != "rms":
        spread = helped.flatten(0, 3).std(0)
        assert torch.allclose(spread, torch.tensor([0.01, 1.0, 10.0], dtype=torch.float64), rtol=0.06)


class Votes(Method):
    """z_j ~ N(0, scale^2 I), y_ij ~ Bernoulli(logistic(x_ij . z_j)): a posterior that is not Gaussian."""

    scale = 1.0

    def personal(self, start: InitialWeights) -> State:
        return {"z_draws": torch.zeros((1, 63, 2), dtype=torch.float64)}

    def model(self, batch: Batch) -> None:
        with clients(batch):
            z = sample("z", Normal(torch.zeros(2, dtype=torch.float64), self.scale).to_event(1))
            with data(batch):
                sample("y", Bernoulli(logits=(batch.x * z).sum(-1)), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        z = param("z_draws")
        with clients(batch):
            sample("z", EmpiricalDraws(z, 1))


@pytest.mark.parametrize(("scale", "calibrated"), [(1.0, True), (1.5, False)])
def test_simulation_based_calibration(scale: float, calibrated: bool) -> None:
    """Ranks of the truth among 63 thinned draws are uniform (Talts et al., 2018); with another prior they are not.

    All simulated data sets are clients of one federation, so that one chain step serves them all.
    """
    from scipy.stats import chisquare

    rng = np.random.default_rng(11)
    truth = rng.normal(size=(600, 2))
    x = rng.normal(size=(600, 6, 2)) * 1.5
    y = (rng.random((600, 6)) < 1 / (1 + np.exp(-(x * truth[:, None]).sum(-1)))).astype(float)
    names = np.repeat([f"{j:03d}" for j in range(600)], 6)
    fed = Federation.from_arrays(x.reshape(-1, 2), y.ravel(), names, test=0.0, task="regression")
    method = type("Scaled", (Votes,), {"scale": scale})(architecture("linear", fed))
    chain = Langevin(["z"], 300 + 63 * 15, 0.3, metropolis=True, burn=300, thin=15, target=0.574, start="prior")
    draws = chains_of(method, fed.to(dtype=torch.float64), chain)["z_draws"][:, 0, 0]
    true = torch.as_tensor(truth)
    # coordinates do not see a wrong scale, which is wrong on both sides of zero: lengths do
    ranks = torch.cat([draws < true[:, None], (draws.norm(dim=-1) < true.norm(dim=1)[:, None])[..., None]], -1).sum(1)
    p = [chisquare(torch.bincount(ranks[:, k] // 4, minlength=16).numpy()).pvalue for k in range(3)]
    assert bool(min(p) > 0.01) is calibrated, p


class Rates(Method):
    """A positive latent: z ~ Gamma(3, 2), y | z ~ N(log z, 1): the chain moves on the real line."""

    prior = staticmethod(lambda: Gamma(torch.tensor(3.0).double(), torch.tensor(2.0).double()))

    def personal(self, start: InitialWeights) -> State:
        return {"z_draws": torch.ones((CHAINS, 2000), dtype=torch.float64)}

    def model(self, batch: Batch) -> None:
        with clients(batch):
            z = sample("z", self.prior())
            with data(batch):
                sample("y", Normal(z.log(), 1.0), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        z = param("z_draws")
        with clients(batch):
            sample("z", EmpiricalDraws(z))


def test_a_constrained_latent_keeps_its_law() -> None:
    fed = slopes([2, 5])
    chain = Langevin(["z"], 2500, 0.1, metropolis=True, burn=500, target=0.574)
    z = chains_of(Rates(architecture("linear", fed)), fed, chain)["z_draws"]
    assert (z > 0).all()
    grid = torch.linspace(1e-4, 12, 200_000, dtype=torch.float64)
    for j in range(2):
        y = fed.examples(fed.train[j])[1]
        density = Gamma(3.0, 2.0).log_prob(grid) + Normal(grid.log()[:, None], 1.0).log_prob(y).sum(1)
        weight = (density - density.max()).exp()
        mean = (weight * grid).sum() / weight.sum()
        sd = ((weight * (grid - mean).square()).sum() / weight.sum()).sqrt()
        assert abs(float(z[j].mean() - mean)) < 0.1 * float(sd)
        assert abs(float(z[j].std() / sd) - 1) < 0.1


def test_what_a_client_draws_depends_on_nobody_else(fed: Federation) -> None:
    method = Slopes(architecture("linear", fed, noise=0.5))
    for batch in (None, 7):
        chain = Langevin(["w"], 40, 1e-3, batch=batch, metropolis=batch is None, start="prior")
        together = chains_of(method, fed, chain)["w_draws"]
        for j in range(fed.clients):
            alone = chains_of(method, fed, chain, who=[j])["w_draws"]
            assert torch.allclose(together[[j]], alone, rtol=1e-9, atol=1e-12), (batch, j)


def test_chains_go_on_where_they_were_or_begin_anew(fed: Federation) -> None:
    class Long(Slopes):
        kept = 3

    method = Long(architecture("linear", fed, noise=0.5))
    start = InitialWeights.of(method.network, 0)
    rows = {k: v.expand(5, 1, *v.shape).clone() for k, v in method.personal(start).items()}
    rows["w_draws"] += torch.arange(3.0)[:, None]
    order = [0, 3, 1, 2, 4]
    for how, near in (("last", True), ("prior", False)):
        chunk = ClientChunk(method, fed, order, 1, 0, method.shared(start), rows)
        done = Langevin(["w"], 3, 1e-12, start=how).run(chunk, 0).values["w_draws"]
        assert bool(torch.allclose(done[:, :, :, 0], rows["w_draws"][:, :, :, -1], atol=1e-3)) is near
    assert torch.equal(rows["w_draws"][0, 0, 0, :, 0], torch.arange(3.0).double())  # what was given is not touched


def test_messages_are_the_log_joints_gradient_averaged_over_draws(fed: Federation) -> None:
    """Fisher's identity: grad log p(z | mu) averaged, here (mean of w - mu) / tau^2."""

    class Long(Slopes):
        kept = 5

    method = Long(architecture("linear", fed, noise=0.5))
    start = InitialWeights.of(method.network, 0)
    rows = {k: v.expand(5, 1, *v.shape) for k, v in method.personal(start).items()}
    rows["w_draws"] = torch.randn((5, 1, CHAINS, 5, 3), generator=generator("draws"), dtype=torch.float64)
    chunk = ClientChunk(method, fed, list(range(5)), 1, 0, {"mu": torch.ones(3, dtype=torch.float64)}, rows)
    got = elbo_gradient(chunk, ["mu"], CHAINS * 5, "any")["mu"]
    assert torch.allclose(got, (rows["w_draws"].mean((1, 2, 3)) - 1) / 1.3**2, rtol=1e-10)


def test_a_population_is_learned_by_chains(fed: Federation) -> None:
    """The whole fit: mu reaches the mean of the exact marginal likelihood's mode within Monte-Carlo error."""

    class Learned(Slopes):
        kept = 10
        chain = Langevin(["w"], 10, 5e-3, metropolis=True)

        def exchange(self) -> dict:
            return {"mu": Gradient(adam(0.02), particles=CHAINS * 10)}

    fed = slopes([30] * 40, noise=0.5, seed=2)
    method = Learned(architecture("linear", fed, noise=0.5))
    run = fit(method, fed, rounds=400, chunk=40, dtype=torch.float64, progress=False)
    parts = [posterior(fed, j, 0.5, 1e3) for j in range(40)]  # least squares, and its covariance
    weights = [torch.linalg.inv(cov + 1.3**2 * torch.eye(3)) for _, cov in parts]
    exact = torch.linalg.solve(sum(weights), sum(w @ m for w, (m, _) in zip(weights, parts, strict=True)))
    assert torch.allclose(run.shared["mu"], exact, atol=0.05)
    draws = run.posterior(draws=40)
    assert draws.posterior.sizes["chain"] == CHAINS
    assert draws.posterior.sizes["draw"] == 10


def test_draws_are_read_evenly_and_have_no_density() -> None:
    kept = torch.arange(24.0).view(1, 1, 2, 6, 2)  # two chains of six
    fn = EmpiricalDraws(kept, 1)
    assert fn.batch_shape == (1, 1)
    assert fn.event_shape == (2,)
    assert torch.equal(fn.some(4)[:, 0, 0, 0], torch.tensor([0.0, 6.0, 12.0, 18.0]))
    assert torch.equal(fn.some(12)[:, 0, 0], kept[0, 0].flatten(0, 1))
    assert torch.equal(fn.mean, kept.mean((2, 3)))
    assert fn.some(30).shape == (30, 1, 1, 2)
    assert torch.equal(fn.log_prob(fn.some(4)), torch.zeros(4, 1, 1))
    assert fn.expand((3, 1)).some(2).shape == (2, 3, 1, 2)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"names": "w"}, "a list of latents"),
        ({"steps": 5, "burn": 5}, "keep nothing"),
        ({"step_size": 0.0}, "above 0"),
        ({"batch": 5, "metropolis": True}, "acceptance probability"),
        ({"target": 0.5}, "needs metropolis"),
        ({"precondition": "newton"}, "unknown preconditioner"),
        ({"precondition": "rms", "metric": "z", "burn": 1}, "of its own"),
        ({"precondition": "fisher"}, "burn must be above 0"),
        ({"start": "middle"}, "unknown start"),
        ({"thin": 0}, "at least 1"),
        ({"sizes": "size"}, "no step size is adapted"),
    ],
)
def test_chains_that_cannot_be(settings: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Langevin(**{"names": ["w"], "steps": 10, "step_size": 0.1, **settings})


def test_latents_that_no_chain_can_move(fed: Federation) -> None:
    class Two(Slopes):
        def model(self, batch: Batch) -> None:
            super().model(batch)
            with clients(batch):
                sample("other", LogNormal(0.0, 1.0))

    net = architecture("linear", fed, noise=0.5)
    with pytest.raises(UserError, match="'other' of the model is moved by no step"):
        chains_of(Two(net), fed, Langevin(["w"], 2, 0.1))
    with pytest.raises(UserError, match="'v_draws', which personal"):
        chains_of(Slopes(net), fed, Langevin(["v"], 2, 0.1))
