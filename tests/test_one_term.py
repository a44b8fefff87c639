"""Baselines that are a limit of the model and exactly one term more."""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import pytest
import torch
from support.baselines import WHOLE, Quadratics, fitted, linear, rows_of, slope_at
from support.federations import blobs, slopes
from torch import Tensor, nn
from torch.func import grad

from hierfl import Federation, UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.gradient_transforms import MetaGradient
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.inference.server.receiver import Receiver
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.rules.clusters import ClusterMeans
from hierfl.inference.server.rules.running import DeltaSum
from hierfl.models import (
    APFL,
    IFCA,
    Ditto,
    FedAvg,
    FedAvgFT,
    PerFedAvg,
    Scaffold,
)
from hierfl.nn.architecture import Architecture
from hierfl.nn.functional import Network
from hierfl.nn.head import LinearHead
from hierfl.nn.networks.build import architecture
from hierfl.rng import permutation

# -- SCAFFOLD -------------------------------------------------------------------------------------------------------


def test_scaffold_with_one_client_is_plain_descent() -> None:
    fed = blobs([23])
    net = architecture("mlp:5", fed)
    common = {"epochs": 2, "lr": 0.05, "batch": 4}
    scaffold = fitted(Scaffold(net, **common), fed, 4)
    avg = fitted(FedAvg(net, momentum=0.0, **common), fed, 4)
    assert torch.allclose(scaffold.shared["w"], net.vector(avg.shared, avg.shared["w"]), rtol=1e-8, atol=1e-10)
    assert torch.allclose(scaffold.shared["c"], scaffold.personal["c_j"][0], rtol=1e-9)


def test_scaffold_has_no_drift_where_fedavg_has(lines: Federation) -> None:
    """Twenty local steps, everybody there: SCAFFOLD finds the least mean of mean losses, FedAvg something else."""
    quadratics = Quadratics(lines)
    best = quadratics.pooled(1 / quadratics.n)
    common = {"epochs": 20, "lr": 0.05, "batch": WHOLE}
    scaffold = fitted(Scaffold(linear(lines), **common), lines, 60)
    assert torch.allclose(scaffold.shared["w"], best, rtol=1e-6, atol=1e-7)
    pooled = quadratics.pooled(torch.ones(4, dtype=torch.float64))
    avg = fitted(FedAvg(linear(lines), momentum=0.0, **common), lines, 60)
    assert (avg.shared["w"] - pooled).abs().max() > 1e-2


def test_scaffolds_variates_are_mean_gradients_of_those_who_reported(small: Federation, net: Architecture) -> None:
    """c_j is the mean of the steps' gradients (their number that of the actual steps), c the mean of all c_j."""
    method = Scaffold(net, epochs=2, lr=0.05, batch=4, server_lr=0.7)
    ready = Fit(method, small, Options(rounds=5, participation=0.4, dtype=torch.float64, evaluate_every=2))
    for _ in range(5):
        before = {k: v.clone() for k, v in ready.fitted().personal.items()}
        shared = {k: v.clone() for k, v in ready.state.shared.items()}
        ready.step()
        own = ready.fitted().personal["c_j"]
        reported = ready.journal.status[-1].bool()
        assert 0 < reported.sum() < 7
        assert torch.equal(own[~reported], before["c_j"][~reported])  # evaluated or not
        assert torch.allclose(ready.state.shared["c"], own.mean(0), rtol=1e-8, atol=1e-12)
        ends = []
        for j in reported.nonzero().flatten().tolist():
            x, y = small.examples(small.train[j])
            chunk = ClientChunk(method, small, [j], ready.journal.round, 0, {}, {})
            v, slopes_of = shared["w"], []
            for epoch in range(2):
                for batch in permutation(len(y), *chunk.key(0, 0), "epoch", epoch).split(4):
                    slopes_of.append(slope_at(net, v, x, y, batch))
                    v = v - 0.05 * (slopes_of[-1] - before["c_j"][j] + shared["c"])
            ends.append(v)
            assert torch.allclose(own[j], torch.stack(slopes_of).mean(0), rtol=1e-7, atol=1e-10)
        plain = torch.stack(ends).mean(0)  # whatever their sizes
        assert torch.allclose(ready.state.shared["w"], shared["w"] + 0.7 * (plain - shared["w"]), rtol=1e-9)


@pytest.mark.parametrize("what", ["rejected", "skipped", "diverged"])
def test_scaffolds_variates_stay_together_when_a_message_is_lost(
    what: str, small: Federation, net: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = Scaffold(net, epochs=1, lr=0.05, batch=4)
    ready = Fit(method, small, Options(rounds=6, dtype=torch.float64, quorum=7 if what == "skipped" else 1))
    ready.step()
    add = Receiver.add

    def damaged(receiver: Receiver, messages: dict, clients: list, healthy: Tensor | None = None) -> Tensor:
        lost = torch.tensor([j == 2 for j in clients])
        if what == "diverged":
            return add(receiver, messages, clients, ~lost if healthy is None else healthy & ~lost)
        messages = {g: {k: v.masked_fill(lost.view(-1, *[1] * (v.dim() - 1)), torch.nan) for k, v in m.items()}
                    for g, m in messages.items()}  # fmt: skip
        return add(receiver, messages, clients, healthy)

    monkeypatch.setattr(Receiver, "add", damaged)
    before = ready.fitted().personal["c_j"].clone()
    ready.step()
    own = ready.fitted().personal["c_j"]
    moved = (own - before).abs().amax(1) > 1e-9
    assert moved.tolist() == [what != "skipped" and j != 2 for j in range(7)]
    assert torch.allclose(ready.state.shared["c"], own.mean(0), rtol=1e-8, atol=1e-12)


def test_an_increment_is_divided_by_all_clients() -> None:
    rule = DeltaSum(lambda chunk: torch.zeros(1))
    context = AggregationContext(10, torch.tensor(2.0), 1, lambda names: {})
    new = rule.update({"c": torch.ones(3)}, {"c": torch.full((3,), 5.0)}, context)
    assert torch.allclose(new["c"], torch.full((3,), 1.5))


# -- IFCA -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["head", "all"])
def test_ifca_with_one_cluster_is_fedavg(scope: str, small: Federation, net: Architecture) -> None:
    common = {"epochs": 3, "lr": 0.05, "batch": WHOLE}
    ifca = fitted(IFCA(net, clusters=1, scope=scope, **common), small, 3)
    avg = fitted(FedAvg(net, **common), small, 3)
    expected = avg.shared["w"] if scope == "head" else net.vector(avg.shared, avg.shared["w"])
    assert torch.allclose(ifca.shared["w"][0], expected, rtol=1e-9, atol=1e-11)


def test_ifca_finds_who_belongs_together() -> None:
    """Two groups with opposite slopes: every client chooses by its training data, and its group gets its own line."""
    fed = slopes([30, 25, 40, 35, 20, 15], noise=0.1, seed=3)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    y = fed.y.clone()
    for j, index in enumerate(fed.train):
        y[index] = signs[j] * (3 * fed.x[index, 0] + fed.x[index, 1])
    fed = dataclasses.replace(fed, y=y)
    run = fitted(IFCA(architecture("linear", fed, noise=1.0), lr=0.1, batch=WHOLE, init_scale=0.5), fed, 20)
    labels = run.personal["label"].flatten()
    assert len(set(labels[::2].tolist())) == len(set(labels[1::2].tolist())) == 1
    assert labels[0] != labels[1]
    lines_found = run.shared["w"][labels.long()]
    assert torch.allclose(lines_found[:, :2], signs[:, None] * torch.tensor([3.0, 1.0]), atol=0.05)


def test_a_cluster_that_nobody_chooses_stays(small: Federation, net: Architecture) -> None:
    start = InitialWeights.of(net, 0)
    method = IFCA(net, clusters=3)
    heads = method.shared(start)["w"]
    assert len({tuple(h.tolist()) for h in heads}) == 3  # equal ones would be chosen alike for ever
    chunk = rows_of(method, small, label=torch.tensor([0.0, 2, 0, 0, 2, 2, 0]).view(7, 1, 1).double())
    copies = torch.randn(7, 1, 3, net.head.d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rule = ClusterMeans("label")
    sent = rule.message(["w"], chunk.put({"w": copies}))
    total = {k: v.sum(0) for k, v in sent.items()}
    new = rule.update({"w": heads.double()}, total, AggregationContext(7, torch.tensor(7.0), 1, lambda names: {}))["w"]
    assert torch.equal(new[1], heads[1].double())
    own = torch.tensor([0, 2, 3, 6])
    weights = chunk.n[own] / chunk.n[own].sum()
    assert torch.allclose(new[0], (weights[:, None] * copies[own, 0, 0]).sum(0), rtol=1e-12)


# -- Per-FedAvg and fits in the end ---------------------------------------------------------------------------------


def test_per_fedavgs_direction_is_the_meta_gradient(small: Federation) -> None:
    """(I - a H'') g'(w - a g(w)) with three minibatches; the finite difference is exact to its square (no ReLUs)."""
    with torch.random.fork_rng():
        net = Architecture(Network(nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh())), LinearHead(5, 3))
    generator = torch.Generator().manual_seed(0)
    w = net.vector(InitialWeights.of(net, 0).base, InitialWeights.of(net, 0).head).double()
    w = w + 0.1 * torch.randn(len(w), generator=generator, dtype=torch.float64)
    x, y = small.examples(small.train[0])
    three, a = torch.arange(21).split(7), 0.3
    v = slope_at(net, w - a * slope_at(net, w, x, y, three[0]), x, y, three[1])
    exact = v - a * grad(lambda u: slope_at(net, u, x, y, three[2]) @ v)(w)
    errors = []
    for difference in (2e-3, 1e-3):
        direction = MetaGradient(a, difference)
        found = direction(lambda at, k: {"w": slope_at(net, at["w"], x, y, three[k])}, {"w": w}, {})["w"]
        errors.append(float((found - exact).abs().max()))
    assert errors[0] < 1e-3
    assert 3 < errors[0] / errors[1] < 5
    assert (exact - v).abs().max() > 1e-2  # (the first-order method is another one)


def meta_gradient(w: Tensor, slopes_of: list, a: float, d: float) -> Tensor:
    """Per-FedAvg's, HF, from three minibatches' gradients."""
    v = slopes_of[1](w - a * slopes_of[0](w))
    return v - a * (slopes_of[2](w + d * v) - slopes_of[2](w - d * v)) / (2 * d)


def test_per_fedavg_takes_that_direction_with_the_clients_own_minibatches(small: Federation, net: Architecture) -> None:
    method = PerFedAvg(net, steps=2, alpha=0.2, lr=0.1, batch=4, difference=1e-3)
    chunk = rows_of(method, small)
    trained = method.local()[0].run(chunk, 0).values["w"]
    for place, j in enumerate(chunk.clients):
        x, y = small.examples(small.train[j])
        w, epochs = chunk.shared["w"], range(6)
        batches = [b for e in epochs for b in permutation(len(y), *chunk.key(0, place), "epoch", e).split(4)]
        for number in range(2):
            three = batches[3 * number : 3 * number + 3]
            slopes_of = [partial(slope_at, net, x=x, y=y, batch=b) for b in three]
            w = w - 0.1 * meta_gradient(w, slopes_of, 0.2, 1e-3)
        assert torch.allclose(trained[place, 0], w, rtol=1e-7, atol=1e-9)
    run = fitted(method, small, 1)
    assert torch.allclose(run.shared["w"], trained.mean((0, 1)), rtol=1e-9)  # a plain mean


def test_per_fedavgs_fit_in_the_end_counts_steps_or_epochs(small: Federation, net: Architecture) -> None:
    """One step, as in the paper, or an epoch: on all data at once they are the same."""
    found = {}
    for said in ({"ft_steps": 1}, {"ft_epochs": 1}, {"ft_steps": 3}, {"ft_epochs": 3}):
        run = fitted(PerFedAvg(net, batch=WHOLE, alpha=0.1, **said), small, 1)
        found[str(said)] = run.personal["offset"]
    one, epoch, three, epochs = found.values()
    torch.testing.assert_close(one, epoch)
    torch.testing.assert_close(three, epochs)
    assert not torch.allclose(one, three)
    with pytest.raises(UserError, match="ft_epochs=3 changes nothing with ft_steps=1"):
        PerFedAvg(net, ft_steps=1, ft_epochs=3)


@pytest.mark.parametrize("scope", ["head", "all"])
def test_a_fit_in_the_end_starts_from_w_and_is_never_sent(scope: str, small: Federation, net: Architecture) -> None:
    common = {"epochs": 2, "lr": 0.05, "batch": 4}
    tuned = fitted(FedAvgFT(net, scope=scope, ft_epochs=3, ft_lr=0.05, **common), small, 3)
    avg = fitted(FedAvg(net, **common), small, 3)
    w = net.vector(avg.shared, avg.shared["w"])
    assert torch.allclose(tuned.shared["w"], w, rtol=1e-8, atol=1e-10)
    offset = tuned.personal["offset"]
    assert offset.shape == (7, net.head.d if scope == "head" else net.d)
    assert (offset.abs().sum(1) > 1e-3).all()
    metrics = tuned.metrics
    last = metrics[metrics["split"] == "test"].iloc[-1]
    assert last["pm_nll"] != last["gm_nll"]
    nothing = fitted(FedAvgFT(net, scope=scope, ft_epochs=0, **common), small, 1)
    assert (nothing.personal["offset"] == 0).all()


# -- cuts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [lambda net, c: Ditto(net, lam=0.1, **c), lambda net, c: Ditto(net, lam=20.0, **c),
     lambda net, c: APFL(net, alpha_lr=0.0, **c)],
    ids=["weak", "strong", "apfl"],
)  # fmt: skip
def test_behind_a_cut_w_is_fedavgs(method: object, small: Federation, net: Architecture) -> None:
    common = {"epochs": 2, "lr": 0.05, "batch": 4}
    run, avg = fitted(method(net, common), small, 3), fitted(FedAvg(net, **common), small, 3)  # type: ignore[operator]
    assert torch.allclose(run.shared["w"], net.vector(avg.shared, avg.shared["w"]), rtol=1e-8, atol=1e-10)


def test_dittos_own_steps_are_around_what_was_received(small: Federation, net: Architecture) -> None:
    method = Ditto(net, lam=0.8, epochs=2, lr=0.05, batch=4, momentum=0.0)
    chunk = rows_of(method, small)
    there = 0.1 * torch.randn(chunk.values["v"].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    chunk = chunk.put({"v": chunk.values["v"] + there})
    trained = method.local()[0].run(chunk, 0).values["v"]
    for place, j in enumerate(chunk.clients):
        x, y = small.examples(small.train[j])
        v, w = chunk.values["v"][place, 0], chunk.shared["w"]
        for epoch in range(2):
            for batch in permutation(len(y), *chunk.key(0, place), "epoch", epoch).split(4):
                slope = slope_at(net, v, x, y, batch)
                v = v - 0.05 * (slope + 0.8 * (v - w))
        assert torch.allclose(trained[place, 0], v, rtol=1e-9, atol=1e-11)


def test_apfls_steps_are_the_papers(small: Federation, net: Architecture) -> None:
    """v <- v - eta alpha grad f(alpha v + (1 - alpha) w_j), with the client's own w_j as it moves."""
    method = APFL(net, alpha=0.3, alpha_lr=0.2, epochs=2, lr=0.05, batch=4, momentum=0.0)
    chunk = rows_of(method, small)
    there = 0.1 * torch.randn(chunk.values["v"].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    chunk = chunk.put({"v": chunk.values["v"] + there})
    done = chunk
    for number, step in enumerate(method.local()):
        done = step.run(done, number)
    for place, j in enumerate(chunk.clients):
        x, y = small.examples(small.train[j])

        v, w, alpha = chunk.values["v"][place, 0], chunk.shared["w"], 0.3
        everything = torch.arange(len(y))
        along = ((v - w) * slope_at(net, alpha * v + (1 - alpha) * w, x, y, everything)).sum()
        alpha = float((alpha - 0.2 * along).clamp(0, 1))
        assert math.isclose(float(done.values["alpha"][place]), alpha, rel_tol=1e-9)
        for epoch in range(2):
            for batch in permutation(len(y), *chunk.key(2, place), "epoch", epoch).split(4):
                slope = slope_at(net, w, x, y, batch)
                own = slope_at(net, alpha * v + (1 - alpha) * w, x, y, batch)
                v, w = v - 0.05 * alpha * own, w - 0.05 * slope
        assert torch.allclose(done.values["v"][place, 0], v, rtol=1e-9, atol=1e-11)


def test_apfls_weight_stays_between_none_and_all_of_it(small: Federation, net: Architecture) -> None:
    run = fitted(APFL(net, alpha_lr=1000.0), small, 3)
    assert ((run.personal["alpha"] >= 0) & (run.personal["alpha"] <= 1)).all()
    assert run.personal["alpha"].std() > 0
