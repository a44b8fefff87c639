"""SVI: against plain loops over clients, and against itself without what makes it fast."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.federations import blobs
from support.methods import chunk_of, order_of
from torch.nn.functional import cross_entropy

from hierfl import Batch, Federation, UserError
from hierfl.data.lazy_tensor import LazyTensor
from hierfl.inference import SVI, ClosedForm, fit
from hierfl.inference.clients.minibatches import active_spans
from hierfl.inference.local.optimizers import MakeOptimizer, adam, sgd
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.objective.elbo import elbo
from hierfl.models import FedPer, FedRep, PFedVEM
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture
from hierfl.rng import permutation


@pytest.mark.parametrize(
    ("make", "plain"),
    [
        (sgd(0.05), partial(torch.optim.SGD, lr=0.05)),
        (sgd(0.05, 0.9), partial(torch.optim.SGD, lr=0.05, momentum=0.9)),
        (adam(0.01), partial(torch.optim.Adam, lr=0.01, betas=(0.9, 0.999))),
    ],
    ids=["sgd", "momentum", "adam"],
)
def test_minibatch_training_equals_a_plain_loop_over_clients(
    make: MakeOptimizer, plain: MakeOptimizer, small: Federation, net: Architecture
) -> None:
    """Torch's optimiser on torch's cross-entropy, one client after another, with the same shuffles."""
    method = FedPer(net)
    chunk = chunk_of(method, small)
    trained = SVI(["mu", "base"], 3, make, 4, per="example").run(chunk, 0)
    for row, j in enumerate(chunk.clients):
        mu = chunk.values["mu"][row, 0].clone().requires_grad_()
        weights = {k: v.clone().requires_grad_() for k, v in net.base.parameters_from(chunk.shared).items()}
        optimizer = plain([mu, *weights.values()])
        x, y = small.examples(small.train[j])
        for epoch in range(3):
            order = order_of(chunk, row, 0, epoch)
            for batch in order.split(4):
                optimizer.zero_grad()
                cross_entropy(net.head(mu, net.base.apply(weights, x[batch][None]))[0], y[batch]).backward()
                optimizer.step()
        assert torch.allclose(trained.values["mu"][row, 0], mu, rtol=1e-9, atol=1e-12)
        for k, w in weights.items():
            assert torch.allclose(trained.values[f"base.{k}"][row, 0], w, rtol=1e-9, atol=1e-12)


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
            slopes = torch.autograd.grad(total, list(leaves.values()))
        leaves = {k: (v + 0.1 * g).detach().requires_grad_() for (k, v), g in zip(leaves.items(), slopes, strict=True)}
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
    for part in permutation(n, "any", 0).split(5):
        x, y = small.examples(small.train[0][part][None])
        scale = torch.tensor([[n / len(part)]], dtype=torch.float64)
        total += elbo(method, Batch(x, y, None, torch.tensor([float(n)]), scale), chunk.view, None) * len(part) / n
    assert torch.allclose(full, total, rtol=1e-12)


@pytest.mark.parametrize("without", ["head_epochs", "base_epochs"])
def test_a_phase_without_epochs_sends_what_it_was_given(small: Federation, net: Architecture, without: str) -> None:
    method = PFedVEM(net, **{without: 0})
    trained = fit(method, small, rounds=1, dtype=torch.float64, progress=False)
    start = method.shared(InitialWeights.for_network(net, 0))
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
