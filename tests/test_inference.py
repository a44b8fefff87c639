"""Local steps, aggregation rules, server: each against an identity or a plain loop."""

from __future__ import annotations

import dataclasses
import logging

import pyro
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.distributions import Delta, Gamma, Laplace, LogNormal, MultivariateNormal, Normal, StudentT
from support.federations import blobs
from support.methods import chunk_of, noise_for, states
from support.rounds import Rounds
from torch.nn.functional import cross_entropy, softplus

from hierfl import Batch, Federation, UserError
from hierfl.data.lazy_tensor import LazyTensor
from hierfl.inference import SVI, ClosedForm, Gradient, Method, SampleWeighted, fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.clients.gradients import elbo_gradient
from hierfl.inference.clients.minibatches import active_spans
from hierfl.inference.local.optimizers import adam, sgd
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.objective.elbo import elbo
from hierfl.inference.objective.log_joint import global_log_prob
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.inference.server.participation import draw_participants
from hierfl.models import FedAvg, FedPer, FedRep, PFedVEM
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture
from hierfl.ppl.plates import clients, data, sample
from hierfl.ppl.reparametrise import reparametrise
from hierfl.rng import generator, permutation

# -- SVI ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [sgd(0.05), sgd(0.05, 0.9), adam(0.01)], ids=["sgd", "momentum", "adam"])
def test_minibatch_training_equals_a_plain_loop_over_clients(
    make: object, small: Federation, net: Architecture
) -> None:
    """Torch's optimiser on torch's cross-entropy, one client after another, with the same shuffles."""
    method = FedPer(net)
    chunk = chunk_of(method, small)
    trained = SVI(["mu", "base"], 3, make, 4, per="example").run(chunk, 0)
    for place, j in enumerate(chunk.clients):
        mu = chunk.values["mu"][place, 0].clone().requires_grad_()
        weights = {k: v.clone().requires_grad_() for k, v in net.base.parameters_from(chunk.shared).items()}
        optimizer = make([mu, *weights.values()])
        x, y = small.examples(small.train[j])
        for epoch in range(3):
            order = permutation(len(y), *chunk.key(0, place), "epoch", epoch)
            for batch in order.split(4):
                optimizer.zero_grad()
                cross_entropy(net.head(mu, net.base.apply(weights, x[batch][None]))[0], y[batch]).backward()
                optimizer.step()
        assert torch.allclose(trained.values["mu"][place, 0], mu, rtol=1e-9, atol=1e-12)
        for k, w in weights.items():
            assert torch.allclose(trained.values[f"base.{k}"][place, 0], w, rtol=1e-9, atol=1e-12)


def test_a_steps_input_is_left_as_it_was(small: Federation, net: Architecture) -> None:
    chunk = chunk_of(PFedVEM(net), small)
    before = {k: v.clone() for k, v in {**chunk.values, **chunk.shared}.items()}
    SVI(["mu", "pi", "base"], 2, sgd(0.001, 0.9), 3).run(chunk, 0)
    SVI(["mu", "pi"], 2, sgd(0.001, 0.9)).run(chunk, 0)
    assert all(torch.equal(v, {**chunk.values, **chunk.shared}[k]) for k, v in before.items())


def test_kept_features_change_nothing(small: Federation, net: Architecture, monkeypatch: pytest.MonkeyPatch) -> None:
    """While only the head moves, the base's output is computed once; without the cache the result is the same."""
    from hierfl.ppl.frozen_features import FrozenFeatures

    chunk = chunk_of(PFedVEM(net), small)
    calls = []
    apply = type(net.base).apply
    monkeypatch.setattr(type(net.base), "apply", lambda *a: calls.append(1) or apply(*a))
    whole, mini = (
        SVI(["mu", "pi"], 5, sgd(0.001), particles=2),
        SVI(["mu", "pi"], 5, sgd(0.001), 4, particles=2),
    )
    kept = [step.run(chunk, 0) for step in (whole, mini)]
    once = len(calls)
    monkeypatch.setattr(FrozenFeatures, "serves", lambda *a: False)
    again = [step.run(chunk, 0) for step in (whole, mini)]
    assert len(calls) - once > 4 * once
    for a, b in zip(kept, again, strict=True):
        for name in ("mu", "pi"):
            assert torch.allclose(a.values[name], b.values[name], rtol=1e-12)


def test_inputs_that_only_kept_features_would_see_are_not_gathered(
    small: Federation, net: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And whoever looks at them all the same finds them as they are."""
    made = []
    original = LazyTensor.whole.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(LazyTensor, "whole", property(lambda self: made.append(1) or original(self)))
    chunk = chunk_of(FedRep(net), small)
    head = SVI(["mu"], 2, sgd(0.1), 4, per="example")
    first = head.run(chunk, 0).values["mu"]
    assert not made

    class Curious(FedRep):
        def model(self, batch: Batch) -> None:
            assert batch.x.shape[:2] == batch.y.shape
            assert batch.x.dtype == batch.n.dtype
            self.seen = batch.x.abs().sum((1, 2))
            super().model(batch)

    method = Curious(net)
    again = head.run(dataclasses.replace(chunk, method=method), 0).values["mu"]
    assert made
    assert torch.equal(first, again)
    places = chunk.examples.first(chunk.clients)
    late, soon = chunk.examples.at(places, defer=True)[0], chunk.examples.at(places)[0]
    assert torch.equal(late + 0, soon)
    assert torch.equal((method.seen != 0), torch.ones_like(method.seen, dtype=torch.bool))


def test_a_moving_base_is_never_served_from_the_cache(small: Federation, net: Architecture) -> None:
    chunk = chunk_of(FedPer(net), small)
    joint = SVI(["mu", "base"], 3, sgd(0.1)).run(chunk, 0)
    batch = small.batch(chunk.clients)
    leaves = {k: v.clone().requires_grad_() for k, v in chunk.own(["mu", *net.base.names]).values.items()}
    for _ in range(3):
        with torch.enable_grad():
            total = elbo(FedPer(net), batch, {**chunk.shared, **leaves}, None).sum()
            found = torch.autograd.grad(total, list(leaves.values()))
        leaves = {k: (v + 0.1 * g).detach().requires_grad_() for (k, v), g in zip(leaves.items(), found, strict=True)}
    assert torch.allclose(joint.values["base.1.weight"], leaves["base.1.weight"], rtol=1e-9, atol=1e-12)


def test_a_finished_client_is_not_moved_by_its_momentum() -> None:
    fed = blobs([40, 4])
    net = architecture("linear", fed)
    chunk = chunk_of(FedPer(net), fed)
    together = SVI(["mu"], 1, sgd(0.1, 0.9), 4, per="example").run(chunk, 0)
    alone = SVI(["mu"], 1, sgd(0.1, 0.9), 4, per="example").run(chunk.take([1]), 0)
    assert torch.allclose(together.values["mu"][1], alone.values["mu"][0], rtol=1e-12)


def test_minibatch_objective_is_unbiased_for_the_whole_one(small: Federation, net: Architecture) -> None:
    """Summed over an epoch's batches with their sizes, the scaled minibatch ELBOs are the full ELBO's likelihood."""
    from hierfl.data.batch import Batch

    method = FedPer(net)
    chunk = chunk_of(method, small, [0])
    full = elbo(method, small.batch([0]), chunk.view, None)
    total = torch.zeros(1, dtype=torch.float64)
    n = len(small.train[0])
    for part in permutation(n, "any").split(5):
        x, y = small.examples(small.train[0][part][None])
        scale = torch.tensor([[n / len(part)]], dtype=torch.float64)
        total += elbo(method, Batch(x, y, None, torch.tensor([float(n)]), scale), chunk.view, None) * len(part) / n
    assert torch.allclose(full, total, rtol=1e-12)


@pytest.mark.parametrize("without", ["head_epochs", "base_epochs"])
def test_a_phase_without_epochs_sends_what_it_was_given(small: Federation, net: Architecture, without: str) -> None:
    method = PFedVEM(net, **{without: 0})
    trained = fit(method, small, rounds=1, dtype=torch.float64, progress=False)
    start = method.shared(InitialWeights.of(net, 0))
    base = {k: v.double() for k, v in start.items() if k != "w"}
    kept = [torch.allclose(trained.shared[k], v, rtol=1e-12) for k, v in base.items()]
    assert all(kept) == (without == "base_epochs")


@given(steps=st.lists(st.integers(1, 20), min_size=1, max_size=10))
@settings(max_examples=60, deadline=None)
def test_spans_let_each_row_take_exactly_its_steps(steps: list[int]) -> None:
    steps = sorted(steps, reverse=True)
    taken = [0] * len(steps)
    for first, last, active in active_spans(steps):
        for row in range(active):
            assert taken[row] == first
            taken[row] = last
    assert taken == steps


def test_training_something_the_model_does_not_use_is_an_error(small: Federation, net: Architecture) -> None:
    idle = chunk_of(FedPer(net), small).put({"idle": torch.zeros(7, 1, 2)})
    with pytest.raises(UserError, match="the ELBO does not depend on it"):
        SVI(["idle"], 1, sgd(0.1)).run(idle, 0)
    with pytest.raises(UserError, match="unknown value 'nu'"):
        SVI(["nu"], 1, sgd(0.1)).run(chunk_of(PFedVEM(net), small), 0)
    with pytest.raises(UserError, match="sets 'nu', which personal"):
        ClosedForm("nu", lambda v: v["mu"]).run(chunk_of(PFedVEM(net), small), 0)
    with pytest.raises(ValueError, match="formula for rho"):
        ClosedForm("rho", lambda v: v["mu"]).run(chunk_of(PFedVEM(net), small), 0)


@pytest.mark.parametrize(
    ("fn", "mean", "std"),
    [
        (Normal(2.0, 3.0), 2.0, 3.0),
        (LogNormal(0.0, 0.5), 1.1331, 0.6039),
        (Laplace(1.0, 2.0), 1.0, 2.8284),
        (Delta(torch.tensor(4.0)), 4.0, 0.0),
    ],
)
def test_guide_distributions_are_drawn_as_they_are(fn: object, mean: float, std: float) -> None:
    noise = torch.randn(400_000, generator=generator("many"), dtype=torch.float64)
    drawn = torch.as_tensor(reparametrise(fn, lambda: noise, "z"), dtype=torch.float64).expand(400_000)
    assert abs(drawn.mean() - mean) < 6 * max(std, 1e-6) / 400_000**0.5
    assert abs(drawn.std() - std) < 0.02 * std + 1e-9


def test_a_correlated_guide_has_its_covariance() -> None:
    cov = torch.tensor([[2.0, 0.6], [0.6, 1.0]], dtype=torch.float64)
    fn = MultivariateNormal(torch.zeros(2, dtype=torch.float64), cov)
    noise = torch.randn((200_000, 2), generator=generator("cov"), dtype=torch.float64)
    assert torch.allclose(torch.cov(reparametrise(fn, lambda: noise, "z").T), cov, atol=0.02)


def test_a_guide_that_cannot_be_keyed_is_refused() -> None:
    with pytest.raises(UserError, match="Gamma cannot be drawn with client-keyed noise"):
        reparametrise(Gamma(1.0, 1.0), lambda: torch.zeros(()), "z")


# -- what a method may not do ---------------------------------------------------------------------------------------


def test_mistakes_in_a_method_file_are_named(small: Federation, net: Architecture) -> None:
    class GlobalInGuide(PFedVEM):
        def guide(self, batch: object) -> None:
            sample("w", Normal(torch.zeros(self.network.head.d), 1.0).to_event(1))

        def shared(self, start: InitialWeights) -> dict:
            return {k: v for k, v in super().shared(start).items() if k != "w"}

        def personal(self, start: InitialWeights) -> dict:
            return {"mu": torch.zeros(self.network.head.d), "pi": torch.zeros(1), "rho": torch.ones(1)}

        def exchange(self) -> dict:
            return {"base": SampleWeighted()}

    with pytest.raises(UserError, match="stands outside the client plate"):
        fit(GlobalInGuide(net), small, rounds=1, progress=False)

    class Unguided(PFedVEM):
        def guide(self, batch: object) -> None:
            """Nothing."""

    with pytest.raises(UserError, match="'w_j' of the model is not in the guide"):
        fit(Unguided(net), small, rounds=1, progress=False)

    class Undeclared(PFedVEM):
        def personal(self, start: InitialWeights) -> dict:
            return {k: v for k, v in super().personal(start).items() if k != "rho"}

    with pytest.raises(UserError, match="unknown value 'rho'"):
        fit(Undeclared(net), small, rounds=1, progress=False)

    class Twice(FedAvg):
        def exchange(self) -> dict:
            return {"base": SampleWeighted(), "base.1": SampleWeighted()}

    with pytest.raises(UserError, match="two aggregation rules claim"):
        fit(Twice(net), small, rounds=1, progress=False)


# -- exchange -------------------------------------------------------------------------------------------------------


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
        found = torch.autograd.grad(joint, list(leaves.values()))
    for name, gradient in zip(names, found, strict=True):
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
    one = Rounds(method, small, chunk.shared, personal)

    def round_of(server: Rounds) -> None:
        server.begin()
        server.receive(server.messages(chunk), chunk.clients)
        server.end()

    round_of(one)
    other = Rounds(method, small, chunk.shared, personal)
    other.state = other.state.restored({k: v.clone() for k, v in one.state.tensors().items()})
    round_of(one)
    round_of(other)
    assert all(torch.equal(v, other.shared[k]) for k, v in one.shared.items())
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


# -- the server -----------------------------------------------------------------------------------------------------


def server_and_messages(fed: Federation, net: Architecture, quorum: int = 1) -> tuple[Rounds, ClientChunk, dict]:
    method = PFedVEM(net)
    chunk = chunk_of(method, fed).own(net.base.names)
    server = Rounds(method, fed, chunk.shared, {k: v[0, 0] for k, v in chunk.values.items()}, quorum)
    server.begin()
    return server, chunk, server.messages(chunk)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_an_invalid_message_counts_as_none(poison: float, small: Federation, net: Architecture) -> None:
    server, chunk, messages = server_and_messages(small, net)
    messages["base"]["base.1.weight"][2, 0, 0] = poison
    valid = server.receive(messages, chunk.clients)
    assert valid.tolist() == [True, True, False, True, True, True, True]
    server.end()
    other, _, _ = server_and_messages(small, net)
    well = chunk.take([0, 1, 3, 4, 5, 6])
    other.receive(other.messages(well), well.clients)
    other.end()
    assert all(torch.allclose(v, other.shared[k], rtol=1e-12) for k, v in server.shared.items())
    assert server.rejected.tolist() == [int(j == chunk.clients[2]) for j in range(7)]


def test_malformed_messages_are_rejected_and_named(
    small: Federation, net: Architecture, caplog: pytest.LogCaptureFixture
) -> None:
    server, chunk, messages = server_and_messages(small, net)
    one = {group: {k: v[:1] for k, v in message.items()} for group, message in messages.items()}
    spoilt = [
        ({"w": one["w"]}, "expected ['base', 'w']"),
        ({**one, "w": {"tau": one["w"]["tau"]}}, "'w' is missing"),
        ({**one, "w": {**one["w"], "w": one["w"]["w"][:, :3]}}, "'w' has shape (3,), expected (18,)"),
        ({**one, "w": {**one["w"], "w": one["w"]["w"].long()}}, "'w' is of torch.int64 on cpu, expected torch.float64"),
        ({**one, "w": {**one["w"], "tau": [1.0]}}, "'tau' is no dense tensor"),
    ]
    with caplog.at_level(logging.WARNING, "hierfl"):
        for message, words in spoilt:
            assert not server.receive(message, [4]).any()
            assert words in caplog.text
    assert server.rejected[4] == len(spoilt)
    server.end()
    assert server.skipped == 1
    assert all(torch.equal(v, chunk.shared[k]) for k, v in server.shared.items())


def test_a_round_below_the_quorum_changes_nothing(small: Federation, net: Architecture) -> None:
    server, chunk, messages = server_and_messages(small, net, quorum=3)
    two = chunk.take([0, 1])
    server.receive(server.messages(two), two.clients)
    server.end()
    assert server.skipped == 1
    assert all(torch.equal(v, chunk.shared[k]) for k, v in server.shared.items())
    server.begin()
    server.receive(messages, chunk.clients)
    server.end()
    assert server.skipped == 1
    assert not torch.equal(server.shared["w"], chunk.shared["w"])


def test_a_client_that_diverges_keeps_its_state_and_is_reported(
    small: Federation, net: Architecture, caplog: pytest.LogCaptureFixture
) -> None:
    """An enormous step size for one client only, by its own data."""
    import dataclasses

    x = small.x.clone()
    x[small.train[3]] *= 1e200  # its likelihood overflows
    sick = dataclasses.replace(small, x=x)
    with caplog.at_level(logging.WARNING, "hierfl"):
        run = fit(PFedVEM(net), sick, rounds=2, dtype=torch.float64, progress=False)
    assert "round 1: 1 client diverged and kept the previous state: place-03" in caplog.text
    assert run.last()["diverged"] == 2
    assert run.last()["rejected"] == 2
    start = PFedVEM(net).shared(InitialWeights.of(net, 0))["w"].double()
    assert torch.equal(run.personal["mu"][3], start)
    assert all(v.isfinite().all() for v in {**run.shared, **run.personal, **run.fitted.copies}.values())
    assert not torch.equal(run.personal["mu"][0], start)


def test_participation_is_bernoulli_keyed_by_client() -> None:
    fed = blobs([3] * 50)
    rounds = [draw_participants(fed.ids, t, 0, 0.2, 1) for t in range(400)]
    share = sum(map(len, rounds)) / (400 * 50)
    assert abs(share - 0.2) < 4 * (0.2 * 0.8 / 20000) ** 0.5
    sizes = torch.tensor([float(len(r)) for r in rounds])
    assert 5 < sizes.var() < 11.5  # independent: variance 8, not a fixed number
    shuffled = fed.select(list(reversed(range(50))))
    assert {fed.ids[j] for j in rounds[7]} == {shuffled.ids[j] for j in draw_participants(shuffled.ids, 7, 0, 0.2, 1)}
    assert min(len(draw_participants(fed.ids, t, 0, 0.01, 2)) for t in range(20)) >= 2
    with pytest.raises(UserError, match="practically never"):
        draw_participants(fed.ids, 1, 0, 1e-9, 2)


def test_who_does_not_report_still_trains_and_moves_nothing_shared(small: Federation, net: Architecture) -> None:
    run = fit(PFedVEM(net), small, rounds=1, participation=0.3, dtype=torch.float64, progress=False)
    silent = sorted(set(range(7)) - set(draw_participants(small.ids, 1, 0, 0.3, 1)))
    assert silent
    start = PFedVEM(net).shared(InitialWeights.of(net, 0))["w"].double()
    assert all(not torch.equal(run.personal["mu"][j], start) for j in silent)
    import dataclasses

    deaf = dataclasses.replace(small, y=small.y.clone())
    for j in silent:
        deaf.y[small.train[j]] = (deaf.y[small.train[j]] + 1) % 3
    other = fit(PFedVEM(net), deaf, rounds=1, participation=0.3, dtype=torch.float64, progress=False)
    assert all(torch.equal(v, other.shared[k]) for k, v in run.shared.items())


def test_who_catches_up_trains_when_it_reports_or_is_evaluated(small: Federation, net: Architecture) -> None:
    how = {
        "participation": 0.3,
        "dtype": torch.float64,
        "progress": False,
        "absent_clients": "catch-up",
        "evaluate_every": 3,
    }
    before = fit(PFedVEM(net), small, rounds=1, **how)
    two = Fit(PFedVEM(net), small, Options(rounds=3, **{k: v for k, v in how.items() if k != "progress"}))
    two.step()
    two.step()
    speaking = set(draw_participants(small.ids, 2, 0, 0.3, 1))
    assert 0 < len(speaking) < 7
    for j in range(7):
        assert torch.equal(two.engine.store.personal["mu"][j], before.personal["mu"][j]) == (j not in speaking), j
    kept = two.engine.store.personal["mu"].clone()
    two.step()  # an evaluation follows
    assert all(not torch.equal(two.engine.store.personal["mu"][j], kept[j]) for j in range(7))
    whole = fit(PFedVEM(net), small, rounds=3, **how)
    assert torch.equal(whole.personal["mu"], two.engine.store.personal["mu"])
    with pytest.raises(UserError, match="unknown value of absent_clients"):
        fit(PFedVEM(net), small, rounds=1, absent_clients="sleep", progress=False)


@pytest.mark.parametrize("method", [PFedVEM, FedPer])
def test_who_is_frozen_when_absent_is_as_it_last_reported(
    method: type[PFedVEM] | type[FedPer], small: Federation, net: Architecture
) -> None:
    how = {"participation": 0.3, "dtype": torch.float64, "absent_clients": "freeze"}
    ready = Fit(method(net), small, Options(rounds=4, **how))
    for number in range(1, 5):  # (every one is evaluated)
        before = {**ready.engine.store.personal, **{f"its {k}": v for k, v in ready.engine.store.copies.items()}}
        ready.step()
        ready.evaluate()
        after = {**ready.engine.store.personal, **{f"its {k}": v for k, v in ready.engine.store.copies.items()}}
        speaking = draw_participants(small.ids, number, 0, 0.3, 1)
        assert 0 < len(speaking) < 7
        for j in range(7):
            assert all(torch.equal(after[k][j], v[j]) for k, v in before.items()) == (j not in speaking), (number, j)
    all_report = [
        fit(method(net), small, rounds=2, dtype=torch.float64, progress=False, absent_clients=absent).shared
        for absent in ("freeze", "train")
    ]
    assert all(torch.equal(v, all_report[1][k]) for k, v in all_report[0].items())


def test_guides_and_models_run_in_plain_pyro(small: Federation, net: Architecture) -> None:
    """A method file is ordinary Pyro: with its parameters in the store, Pyro's own ELBO can be evaluated."""
    method = PFedVEM(net)
    shared, rows = states(method, small)
    batch = small.batch(range(small.clients))
    with pyro.get_param_store().scope(), torch.random.fork_rng():
        for name, value in {**shared, **rows}.items():
            pyro.param(name, value.clone())
        torch.manual_seed(0)
        model = pyro.poutine.condition(method.model, data={"w": shared["w"]})
        loss = pyro.infer.TraceMeanField_ELBO(num_particles=200, vectorize_particles=True, max_plate_nesting=2)
        theirs = -loss.loss(model, method.guide, batch)
    ours = elbo(method, batch, {**shared, **rows}, noise_for(small, list(range(small.clients)), 4000)).sum()
    assert theirs == pytest.approx(float(ours), rel=0.02)  # both are Monte-Carlo in the likelihood
    assert softplus(rows["pi"]).min() > 0
