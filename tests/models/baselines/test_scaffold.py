"""SCAFFOLD: its variates, against plain loops."""

from __future__ import annotations

import pytest
import torch
from support.baselines import WHOLE, Quadratics, fitted, linear, slope_at
from support.federations import blobs
from support.methods import order_of
from torch import Tensor

from hierfl import Federation
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.inference.server.receiver import Receiver
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.rules.running import DeltaSum
from hierfl.models import (
    FedAvg,
    Scaffold,
)
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture


def test_scaffold_with_one_client_is_plain_descent() -> None:
    fed = blobs([23])
    net = architecture("mlp:5", fed)
    common = {"epochs": 2, "lr": 0.05, "batch": 4}
    scaffold = fitted(Scaffold(net, **common), fed, 4)
    avg = fitted(FedAvg(net, momentum=0.0, **common), fed, 4)
    assert torch.allclose(scaffold.shared["w"], net.vector(avg.shared, avg.shared["w"]), rtol=1e-8, atol=1e-10)
    assert torch.allclose(scaffold.shared["c"], scaffold.personal["c_j"][0], rtol=1e-9)


@pytest.mark.cpu(4, "as many rounds as a fixed point takes to six digits")
def test_scaffold_has_no_drift_where_fedavg_has(lines: Federation) -> None:
    """Twenty local steps, everybody there: SCAFFOLD finds the least mean of mean losses, FedAvg something else."""
    quadratics = Quadratics(lines)
    best = quadratics.pooled(1 / quadratics.n)
    common = {"epochs": 20, "lr": 0.05, "batch": WHOLE}
    scaffold = fitted(Scaffold(linear(lines), **common), lines, 60)
    assert torch.allclose(scaffold.shared["w"], best, rtol=1e-6, atol=1e-7)
    pooled = quadratics.pooled(torch.ones(4, dtype=torch.float64))
    avg = fitted(FedAvg(linear(lines), momentum=0.0, **common), lines, 20)
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
                for batch in order_of(chunk, 0, 0, epoch).split(4):
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
