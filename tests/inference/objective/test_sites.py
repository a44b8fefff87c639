"""Several sites, and latents of examples."""

from __future__ import annotations

import pyro
import pytest
import torch
from pyro.distributions import Normal
from pyro.distributions.util import scale_and_mask
from pyro.infer import Trace_ELBO
from support.methods import noise_for, states
from torch.distributions import kl_divergence
from torch.nn.functional import softplus

from hierfl import Batch, Federation
from hierfl.inference import SVI, Gradient, Method, SampleWeighted, fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.evaluation.fitted import Fitted
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.objective.constant_latent import constant_latent
from hierfl.inference.objective.elbo import elbo
from hierfl.inference.objective.log_joint import sum_rows
from hierfl.inference.objective.sites import guide_latents, model_sites
from hierfl.models import FedRep, PFedVEM
from hierfl.nn.architecture import Architecture
from hierfl.ppl.plates import clients, data, flat, param, sample
from hierfl.rng import ClientNoise, client_keys


class TwoSites(Method):
    """An intercept b_j beside the head, and a latent of every example: z_ij ~ N(0, 1) moves the first feature."""

    def shared(self, start: InitialWeights) -> dict:
        return {"w": 0.1 * start.head, "slope": torch.tensor([0.3]), **start.base}

    def personal(self, start: InitialWeights) -> dict:
        d = len(start.head)
        return {"mu": 0.1 * start.head, "pi": torch.full((d,), -1.0), "m": torch.zeros(1), "s": torch.zeros(1)}

    def model(self, batch: object) -> None:
        net = self.network
        w = sample("w", flat(net.head.d))
        with clients(batch):
            w_j = sample("w_j", Normal(w, 0.5).to_event(1))
            b_j = sample("b_j", Normal(torch.zeros(1, dtype=batch.n.dtype), 1.0).to_event(1))
            with data(batch):
                z = sample("z", Normal(torch.zeros(1, dtype=batch.n.dtype), 1.0).to_event(1))
                out = net.head(w_j, net.base(batch.x)) + b_j + z
                sample("y", net.likelihood(out), obs=batch.y)

    def guide(self, batch: object) -> None:
        with clients(batch):
            sample("w_j", Normal(param("mu"), softplus(param("pi"))).to_event(1))
            sample("b_j", Normal(param("m"), softplus(param("s"))).to_event(1))
            with data(batch):
                amortised = (batch.x[..., :1] * param("slope")).tanh()
                sample("z", Normal(amortised, 0.7).to_event(1))

    def local(self) -> list:
        return [
            SVI(["mu", "pi", "m", "s"], 3, sgd(0.01), particles=2),
            SVI(["slope", "base"], 2, sgd(0.01, 0.9), 4, particles=2, per="example"),
        ]

    def exchange(self) -> dict:
        return {"slope": SampleWeighted(), "base": SampleWeighted(), "w": Gradient(sgd(0.05), particles=2)}


def test_latents_of_examples_keep_restriction_and_plate_independence(small: Federation, net: Architecture) -> None:
    method = TwoSites(net)
    shared, rows = states(method, small)
    everyone = list(range(small.clients))
    noise = noise_for(small, everyone, 2)
    noise.counts = small.sizes()
    together = elbo(method, small.batch(everyone), {**shared, **rows}, noise)
    for j in everyone:
        noise = noise_for(small, [j], 2)
        noise.counts = [small.sizes()[j]]
        alone = elbo(method, small.batch([j]), {**shared, **{k: v[[j]] for k, v in rows.items()}}, noise)
        assert torch.allclose(together[j], alone[0], rtol=1e-10)
    a, b = (fit(method, small, rounds=3, chunk=c, dtype=torch.float64, progress=False) for c in (1, 7))
    for name, value in {**a.shared, **a.personal}.items():
        assert torch.allclose(value, {**b.shared, **b.personal}[name], rtol=1e-5, atol=1e-5), name


def test_the_kl_of_examples_leaves_padding_out_and_counts_minibatches_up(small: Federation, net: Architecture) -> None:
    """The analytic KL of z summed over real examples: the difference that the site makes at fixed draws."""
    method = TwoSites(net)
    shared, rows = states(method, small)
    batch = small.batch([0, 2])
    values = {**shared, **{k: v[[0, 2]] for k, v in rows.items()}}
    mean = (batch.x[..., 0] * shared["slope"]).tanh()
    kl = 0.5 * (mean**2 + 0.7**2 - 1) - torch.tensor(0.7).log()

    def site_kl(batch: object) -> torch.Tensor:
        def noise() -> ClientNoise:
            return ClientNoise(client_keys("ab"), (0,), 1, counts=[23, 2], dtype=torch.float64)

        full = elbo(method, batch, values, noise())
        latents = guide_latents(method, batch, values, noise())

        sites = model_sites(method, batch, values, latents)
        y = sum_rows(scale_and_mask(sites["y"].fn.log_prob(sites["y"].value), sites["y"].scale, sites["y"].mask), 2)
        others = sum(sum_rows(kl_divergence(latents[k].fn, sites[k].fn), 2) for k in ("w_j", "b_j"))
        return y - others - full

    assert torch.allclose(site_kl(batch), (kl * batch.mask).sum(1), rtol=1e-6)
    scaled = Batch(batch.x, batch.y, batch.mask, batch.n, torch.tensor([[2.0], [5.0]], dtype=torch.float64))
    expected = (kl * batch.mask).sum(1) * torch.tensor([2.0, 5.0], dtype=torch.float64)
    assert torch.allclose(site_kl(scaled), expected, rtol=1e-6)


def test_streams_differ_by_client_round_phase_and_site(small: Federation, net: Architecture) -> None:
    method = TwoSites(net)
    shared, rows = states(method, small)
    size = torch.Size([400])

    def drawn(round: int, phase: object, site: str) -> torch.Tensor:
        chunk = ClientChunk(method, small, [0, 1], round, 0, shared, {k: v[:2] for k, v in rows.items()})
        return chunk.noise(phase, 1).normal(site, None, size)[0, :, 0]

    fitted = Fitted(method, small, shared, {}, {}, {}, 0)
    streams = [*drawn(1, 1, "w_j"), *drawn(2, 1, "w_j"), *drawn(1, 2, "w_j"), *drawn(1, 1, "b_j")]
    for purpose in ("predict", "posterior"):
        streams += list(fitted.noise([0, 1], 1, purpose).normal("w_j", None, size)[0, :, 0])
    correlation = torch.corrcoef(torch.stack(streams)) - torch.eye(len(streams))
    assert correlation.abs().max() < 5 / 400**0.5  # twelve independent streams of 400


def test_pyros_own_elbo_agrees_on_two_sites(small: Federation, net: Architecture) -> None:
    method = TwoSites(net)
    shared, rows = states(method, small)
    batch = small.batch(range(small.clients))
    with pyro.get_param_store().scope(), torch.random.fork_rng():
        for name, value in {**shared, **rows}.items():
            pyro.param(name, value.clone())
        torch.manual_seed(0)
        model = pyro.poutine.condition(method.model, data={"w": shared["w"]})
        loss = Trace_ELBO(num_particles=500, vectorize_particles=True, max_plate_nesting=2)
        theirs = -loss.loss(model, method.guide, batch)
    noise = noise_for(small, list(range(small.clients)), 500)
    noise.counts = small.sizes()
    ours = float(elbo(method, batch, {**shared, **rows}, noise).sum())
    assert theirs == pytest.approx(ours, rel=0.03)


def test_a_guide_is_asked_once_only_where_nothing_in_it_can_change(small: Federation, net: Architecture) -> None:
    class Amortised(PFedVEM):
        def guide(self, batch: Batch) -> None:
            shift = batch.y.double().mean(1, keepdim=True)[..., None]
            with clients(batch):
                sample("w_j", Normal(param("mu") + shift, softplus(param("pi"))).to_event(1))

    class OfTheBase(PFedVEM):
        def guide(self, batch: Batch) -> None:
            size = param("base.1.bias").square().sum(-1, keepdim=True)
            with clients(batch):
                sample("w_j", Normal(param("mu") + size, softplus(param("pi"))).to_event(1))

    for method, moving, stands in (
        (PFedVEM(net), net.base.names, True),
        (PFedVEM(net), ["mu"], False),
        (FedRep(net), net.base.names, True),
        (Amortised(net), net.base.names, False),
        (OfTheBase(net), net.base.names, False),
        (TwoSites(net), net.base.names, False),
    ):
        shared, rows = states(method, small)
        values = {**shared, **rows}
        noise = noise_for(small, list(range(7)), 3)
        site = constant_latent(method, small.batch(range(7)).n, values, noise, moving)
        assert (site is not None) is stands, type(method)
        if site is not None:
            drawn = site.redrawn(noise.at(1))["w_j"].value
            again = guide_latents(method, small.batch(range(7)), values, noise.at(1))["w_j"].value
            assert torch.equal(drawn, again)
