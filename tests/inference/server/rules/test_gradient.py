"""The generic rule: the clients' summed gradient of the restricted ELBO, up which an optimiser goes."""

from __future__ import annotations

import torch
from pyro.distributions import Normal, StudentT
from support.federations import blobs
from support.methods import chunk_of, states
from support.rounds import Rounds

from hierfl import Federation
from hierfl.inference import SVI, Gradient, Method
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.clients.gradients import elbo_gradient
from hierfl.inference.local.optimizers import adam, sgd
from hierfl.inference.objective.elbo import elbo
from hierfl.inference.objective.log_joint import global_log_prob
from hierfl.models import PFedVEM
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture
from hierfl.ppl.plates import clients, data, sample


class Learned(PFedVEM):
    """w by the generic rule, under a proper prior."""

    def model(self, batch: object) -> None:
        net = self.network
        w = sample("w", Normal(torch.full((net.head.d,), 0.5, dtype=torch.float64), 2.0).to_event(1))
        with clients(batch):
            w_j = sample("w_j", StudentT(5.0, w, 0.7).to_event(1))
            with data(batch):
                sample("y", net.likelihood(net.head(w_j, net.base(batch.x))), obs=batch.y)

    def local(self) -> list:
        return [SVI(["mu", "pi"], 2, sgd(0.01))]

    def exchange(self) -> dict:
        return {"w": Gradient(sgd(0.1), particles=2), "base": Gradient(adam(0.01))}


def test_generic_messages_sum_to_the_joint_gradient(small: Federation, net: Architecture) -> None:
    method = Learned(net)
    chunk = chunk_of(method, small)
    names = ["w", *net.base.names]
    rows = elbo_gradient(chunk, names, 2, "g")
    leaves = {k: chunk.shared[k].clone().requires_grad_() for k in names}
    batch = small.batch(chunk.clients)
    noise = chunk.noise("g", 2)
    with torch.enable_grad():
        joint = elbo(method, batch, {**chunk.view, **leaves}, noise).sum()
        gradients = torch.autograd.grad(joint, list(leaves.values()))
    for name, gradient in zip(names, gradients, strict=True):
        assert torch.allclose(rows[name].sum(0), gradient, rtol=1e-9, atol=1e-10), name


def test_generic_rule_takes_the_step_it_claims(small: Federation, net: Architecture) -> None:
    """w + lr (J/|A| sum of gradients + gradient of log p(w)), for the three that report."""
    method = Learned(net)
    chunk = chunk_of(method, small).take([0, 3, 5])
    server = Rounds(method, small, chunk.shared, {k: v[0, 0] for k, v in chunk.values.items()})
    server.begin()
    messages = server.messages(chunk)
    assert server.receive(messages, chunk.clients).all()
    server.end()
    w = chunk.shared["w"].clone().requires_grad_()
    with torch.enable_grad():
        prior = torch.autograd.grad(Normal(0.5, 2.0).log_prob(w).sum(), w)[0]
    expected = w + 0.1 * (7 / 3 * messages["w"]["w"].sum(0) + prior)
    assert torch.allclose(server.shared["w"], expected, rtol=1e-9)


def test_what_the_servers_optimiser_remembers_is_part_of_its_state(small: Federation, net: Architecture) -> None:
    method = Learned(net)
    chunk = chunk_of(method, small)
    personal = {k: v[0, 0] for k, v in chunk.values.items()}
    original = Rounds(method, small, chunk.shared, personal)

    def round_of(server: Rounds) -> None:
        server.begin()
        server.receive(server.messages(chunk), chunk.clients)
        server.end()

    round_of(original)
    other = Rounds(method, small, chunk.shared, personal)
    other.state = other.state.restored({k: v.clone() for k, v in original.state.tensors().items()})
    round_of(original)
    round_of(other)
    assert all(torch.equal(v, other.shared[k]) for k, v in original.shared.items())
    leaf = chunk.shared["base.1.weight"].clone().requires_grad_()
    plain = adam(0.01)([leaf])
    for _ in range(2):  # the gradient moves with the base: only the first step can be foretold
        leaf.grad = -server_gradient(method, small, chunk)["base.1.weight"]
        plain.step()
        break
    fresh = Rounds(method, small, chunk.shared, personal)
    round_of(fresh)
    assert torch.allclose(fresh.shared["base.1.weight"], leaf, rtol=1e-9)


def server_gradient(method: Method, fed: Federation, chunk: ClientChunk) -> dict:
    names = list(method.network.base.names)
    return {k: v.sum(0) for k, v in elbo_gradient(chunk, names, 1, ("gradient", *names)).items()}


def test_the_generic_rule_finds_the_population_mean_of_a_conjugate_model() -> None:
    """Point guides fixed at mu_j, w ~ N(0.5, 2^2), w_j ~ N(w, 0.7^2): ascent ends at the exact posterior mode of w."""
    fed = blobs([6, 6, 6, 6])
    net = architecture("linear", fed)

    class Conjugate(Learned):
        def model(self, batch: object) -> None:
            n = self.network
            w = sample("w", Normal(torch.full((n.head.d,), 0.5, dtype=torch.float64), 2.0).to_event(1))
            with clients(batch):
                w_j = sample("w_j", Normal(w, 0.7).to_event(1))
                with data(batch):
                    sample("y", n.likelihood(n.head(w_j, n.base(batch.x))), obs=batch.y)

        def local(self) -> list:
            return []

        def exchange(self) -> dict:
            return {"w": Gradient(sgd(0.05))}

    method = Conjugate(net)
    chunk = chunk_of(method, fed)
    server = Rounds(method, fed, chunk.shared, {k: v[0, 0] for k, v in chunk.values.items()})
    for _ in range(200):
        server.begin()
        server.receive(
            server.messages(ClientChunk(method, fed, chunk.clients, 1, 0, server.shared, chunk.values)), chunk.clients
        )
        server.end()
    precision = 4 / 0.49 + 1 / 4
    mode = (chunk.values["mu"].sum((0, 1)) / 0.49 + 0.5 / 4) / precision
    assert torch.allclose(server.shared["w"], mode, rtol=1e-6)


def test_log_p_globals_counts_once(small: Federation, net: Architecture) -> None:
    method = Learned(net)
    shared, rows = states(method, small)
    value = global_log_prob(method, small.template(), shared, {k: v[:1] for k, v in rows.items()})
    assert torch.allclose(value, Normal(0.5, 2.0).log_prob(shared["w"]).sum())
