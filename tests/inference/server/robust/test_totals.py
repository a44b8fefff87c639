"""A robust rule in place of a sum: every method's rules go on, and one liar of ten cannot move them far."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from support.rounds import Messages, Rounds
from support.senders import CLIENTS, QUICK, every, honest

from hierfl.errors import UserError
from hierfl.inference.messages.form import Field
from hierfl.inference.options import Options
from hierfl.inference.server.receiver import Receiver
from hierfl.inference.server.robust.rules import CentredClip, Krum, Median, Trimmed
from hierfl.inference.server.robust.totals import group_total
from hierfl.inference.server.robust.usable import check_robust
from hierfl.inference.server.robust.watch import Watch
from hierfl.inference.server.rules.weights import append_dims
from hierfl.inference.state import State

RULES = {"trimmed:0.1": Trimmed(0.1), "median": Median(), "centred-clip:2": CentredClip(2.0), "krum:1": Krum(1)}


def after(server: Rounds, messages: Messages, clients: list[int], rule: str) -> State:
    """Shared values after a round in which a robust rule combines these messages."""
    server = copy.deepcopy(server)
    state = server.state
    receiver = Receiver(server.exchange, state.shared, CLIENTS, server.device, 0.0, collect=True)
    receiver.add(messages, clients)
    assert receiver.singles is not None
    watch = Watch.for_fit(Options(robust=rule), server.exchange)
    sums = watch.after_round(receiver.sums, receiver.singles.of_all(CLIENTS), state.shared)
    server.state = server.server(state, sums)
    assert server.skipped == 0
    return server.shared


def gap(first: State, second: State) -> float:
    return float(sum((first[k] - second[k]).double().square().sum() for k in first)) ** 0.5


@every
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_of_every_method_goes_on(case: Any, rule: str) -> None:
    """With honest messages an update has the size that it has without, and one that is a million times too large adds
    no more than a few honest ones do."""
    server, messages, clients = honest(case)
    if server.exchange.individual:
        with pytest.raises(UserError, match="looked at one by one"):
            check_robust(Options(robust=rule), server.exchange, CLIENTS)
        return
    begun, plain = server.shared, copy.deepcopy(server)
    assert plain.receive(messages, clients).all()
    plain.end()
    moved = gap(plain.shared, begun)
    assert gap(after(server, messages, clients, rule), begun) < 5 * moved + 1e-9
    lie = {g: {k: v.clone() for k, v in m.items()} for g, m in messages.items()}
    for message in lie.values():
        for value in message.values():
            if value.is_floating_point():
                value[0] *= 1e6
    assert gap(after(server, lie, clients, rule), begun) < 10 * moved + 1e-6


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_positive_matrices_stay_positive(rule: Any) -> None:
    """Sums of matrices: whole messages count less, none of their entries by itself."""
    roots = torch.randn(10, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    matrices, vectors = roots @ roots.mT, roots[:, 0]
    matrices[3], vectors[3] = 1e6 * matrices[3], -1e6 * vectors[3]
    form = {"a": Field((4, 4), torch.float64), "b": Field((4,), torch.float64)}
    total = group_total(rule, form, {"a": matrices, "b": vectors}, torch.ones(10, dtype=torch.long))
    assert torch.linalg.eigvalsh(total["a"]).min() > 0
    rest = [j for j in range(10) if j != 3]
    assert 0.3 < float(total["a"].trace() / (matrices[rest].diagonal(dim1=1, dim2=2).sum() / 0.9)) < 3


def test_a_wrong_weight_counts_as_three_median_ones() -> None:
    values = torch.arange(10.0)[:, None]
    weight = torch.ones(10)
    weight[9] = 1e9
    form = {
        "w": Field((1,), torch.float32, scaled=True, weight=lambda sent: sent["weight"]),
        "weight": Field((), torch.float32),
    }
    message = {"w": values * weight[:, None], "weight": weight}
    total = group_total(Trimmed(0.01), form, message, torch.ones(10, dtype=torch.long))
    assert float(total["weight"]) == 12.0
    assert float(total["w"] / total["weight"]) == pytest.approx(sum(range(1, 9)) / 8)
    total = group_total(Krum(1), form, message, torch.ones(10, dtype=torch.long))
    assert 4.0 <= float(total["w"] / total["weight"]) <= 6.0


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_what_fewer_than_three_say_something_of_is_left_out(rule: Any) -> None:
    """A class of two clients, one of which lies; beside two honest ones a liar is bounded."""
    form = {
        "mean": Field((2, 1), torch.float64, scaled=True, weight=lambda sent: sent["n"]),
        "n": Field((2,), torch.float64),
    }
    n = torch.full((10, 2), 20.0, dtype=torch.float64)
    n[3:, 1] = 0
    values = torch.linspace(0.9, 1.1, 20, dtype=torch.float64).view(10, 2, 1)
    values[2, 1], n[2, 1] = -1000.0, 1e9
    total = group_total(rule, form, {"mean": values * n[..., None], "n": n}, torch.ones(10, dtype=torch.long))
    assert total["n"].tolist() == [200.0, 100.0]
    assert float(total["mean"][1, 0] / 100) > -1.0
    n[1, 1] = 0
    total = group_total(rule, form, {"mean": values * n[..., None], "n": n}, torch.ones(10, dtype=torch.long))
    assert total["n"].tolist() == [200.0, 0.0]
    assert total["mean"][1].tolist() == [0.0]


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_one_number_of_a_gradient_is_bounded(rule: Any) -> None:
    """A message that is in the middle otherwise: the total moves by a few honest standard deviations of one message."""
    honest = torch.randn(10, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    form = {"g": Field((200,), torch.float64)}
    for size in (3.0, 14.0, 30.0, 1e6):
        totals = []
        for entry in (0.0, size):
            lying = honest.clone()
            lying[0] = honest[1:].mean(0)
            lying[0, 0] = entry
            totals.append(group_total(rule, form, {"g": lying}, torch.ones(10, dtype=torch.long))["g"][0])
        assert abs(totals[1] - totals[0]) < 9


def test_a_round_of_fewer_than_a_rule_needs_changes_nothing() -> None:
    server, messages, clients = honest(QUICK[0])
    few = {g: {k: v[:2] for k, v in m.items()} for g, m in messages.items()}
    receiver = Receiver(server.exchange, server.state.shared, CLIENTS, server.device, 0.0, collect=True)
    receiver.add(few, clients[:2])
    assert receiver.singles is not None
    watch = Watch.for_fit(Options(robust="median"), server.exchange)
    sums = watch.after_round(receiver.sums, receiver.singles.of_all(CLIENTS), server.state.shared)
    assert int(server.server(server.state, sums).skipped) == 1
    with pytest.raises(UserError, match="at least 3 clients in a round, and with participation 0.2 of 10 about 2"):
        check_robust(Options(robust="median", participation=0.2), server.exchange, CLIENTS)


def test_groups_of_clients_are_compared_by_their_means() -> None:
    """Sums over groups of unequal size: a value without weights is divided by how many messages are in it."""
    form = {"v": Field((2,), torch.float64, scaled=True)}
    sums = torch.tensor([[3.0, 6.0], [4.0, 8.0], [500.0, -500.0]], dtype=torch.float64)
    total = group_total(Median(), form, {"v": sums}, torch.tensor([3, 4, 3]))
    assert (total["v"] / 10).tolist() == [1.0, 2.0]


def test_what_cannot_be_said_is_refused() -> None:
    server, _, _ = honest(QUICK[0])
    for options, clients, words in (
        (Options(robust="krum:4"), CLIENTS, "needs at least 11 clients, and there are 10"),
        (Options(robust="median", masked=True), CLIENTS, "mask_groups"),
        (Options(robust="krum:1", masked=True, mask_groups=3), CLIENTS, "at least 5 groups of clients"),
    ):
        with pytest.raises(UserError, match=words):
            check_robust(options, server.exchange, clients)
    check_robust(Options(robust="median", masked=True, mask_groups=3), server.exchange, CLIENTS)


def test_a_weight_of_no_dimension_stays_beside_a_single_number() -> None:
    """As of a response's standard deviation, which all clients share."""
    weight, value = torch.tensor(3.0), torch.tensor(2.0)
    assert append_dims(weight, value).shape == ()
    assert append_dims(weight, torch.zeros(2, 3)).shape == (1, 1)
