"""Chains of clients: where they begin, what they keep, what is learned from them."""

from __future__ import annotations

import pytest
import torch
from pyro.distributions import LogNormal, Normal
from support.chains import CHAINS, Slopes, chains_of, posterior
from support.federations import slopes

from hierfl import Federation, UserError
from hierfl.data.batch import Batch
from hierfl.inference import Gradient, Langevin, fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.clients.gradients import elbo_gradient
from hierfl.inference.local.optimizers import adam
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.objective.log_joint import log_joint
from hierfl.nn.networks.build import architecture
from hierfl.ppl.empirical_draws import EmpiricalDraws
from hierfl.ppl.plates import clients, sample
from hierfl.rng import generator


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
    start = InitialWeights.for_network(method.network, 0)
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
    start = InitialWeights.for_network(method.network, 0)
    rows = {k: v.expand(5, 1, *v.shape) for k, v in method.personal(start).items()}
    rows["w_draws"] = torch.randn((5, 1, CHAINS, 5, 3), generator=generator("draws"), dtype=torch.float64)
    chunk = ClientChunk(method, fed, list(range(5)), 1, 0, {"mu": torch.ones(3, dtype=torch.float64)}, rows)
    got = elbo_gradient(chunk, ["mu"], CHAINS * 5, "any")["mu"]
    assert torch.allclose(got, (rows["w_draws"].mean((1, 2, 3)) - 1) / 1.3**2, rtol=1e-10)


@pytest.mark.slow
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
        ({"precondition": "curvature", "step_size": 2.0}, "at most 1"),
        ({"leaps": 2}, "need metropolis"),
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
