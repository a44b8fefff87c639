"""The server: state and sums in, state out; it asks neither data nor clients."""

from __future__ import annotations

import copy

import pytest
import torch
from support.methods import chunk_of
from support.rounds import Rounds

from hierfl import Federation
from hierfl.inference.messages.sums import Sums
from hierfl.inference.server.exchange import Exchange
from hierfl.inference.server.server import Server, ServerState
from hierfl.models import FedPop, PFedVEM
from hierfl.nn.architecture import Architecture


def same(a: ServerState, b: ServerState) -> bool:
    first, other = a.tensors(), b.tensors()
    return first.keys() == other.keys() and all(torch.equal(v, other[k]) for k, v in first.items())


@pytest.fixture
def begun(small: Federation, net: Architecture) -> tuple[Rounds, ServerState, Sums]:
    """A server, its state after a round, and the sums of the next; with an optimiser that remembers."""
    method = FedPop(net)
    chunk = method.local()[0].run(chunk_of(method, small), 0)
    rounds = Rounds(method, small, chunk.shared, {k: v[0, 0] for k, v in chunk.values.items()})
    for _ in range(2):
        rounds.begin()
        assert rounds.receive(rounds.messages(chunk), chunk.clients).all()
        sums = rounds.receiver.sums
        if rounds.state.round == 0:
            rounds.end()
    assert any(rounds.state.rule_state.values())
    return rounds, rounds.state, sums


def test_a_state_is_left_as_it_was(begun: tuple[Rounds, ServerState, Sums]) -> None:
    rounds, state, sums = begun
    before, added = copy.deepcopy(state), copy.deepcopy(sums.totals)
    first = rounds.server(state, sums)
    assert same(state, before)
    assert all(torch.equal(v, added[group][k]) for group, total in sums.totals.items() for k, v in total.items())
    assert not same(first, state)
    assert (first.round, state.round) == (2, 1)
    assert first.bytes == state.bytes + sums.bytes
    assert same(rounds.server(state, sums), first)  # nothing else is remembered


def test_a_skipped_rounds_state_is_a_new_one_too(begun: tuple[Rounds, ServerState, Sums]) -> None:
    rounds, state, sums = begun
    before = copy.deepcopy(state)
    lost = Sums(
        sums.reported, sums.diverged, {g: {k: v * torch.nan for k, v in t.items()} for g, t in sums.totals.items()}
    )
    for nothing in (Sums.nothing(torch.device("cpu")), lost):
        after = rounds.server(state, nothing)
        assert same(state, before)
        assert bool(after.last_skipped)
        assert (int(after.skipped), int(state.skipped)) == (1, 0)
        assert all(torch.equal(v, state.shared[k]) for k, v in after.shared.items())
        for group, kept in after.rule_state.items():
            assert all(torch.equal(v, state.rule_state[group][k]) for k, v in kept.items())


def test_a_state_goes_into_tensors_and_back(begun: tuple[Rounds, ServerState, Sums]) -> None:
    rounds, state, sums = begun
    fresh = rounds.server.begin({k: torch.zeros_like(v) for k, v in state.shared.items()})
    again = fresh.restored({k: v.clone() for k, v in state.tensors().items()})
    assert same(again, state)
    assert same(rounds.server(again, sums), rounds.server(state, sums))


def test_a_server_needs_no_federation(small: Federation, net: Architecture) -> None:
    """One row without data, initial values and a number of clients are enough; and it holds nothing of the data."""
    method = PFedVEM(net)
    chunk = chunk_of(method, small).own(net.base.names)
    shared, initial = chunk.shared, {k: v[0, 0] for k, v in chunk.values.items() if k not in chunk.shared}
    exchange = Exchange(method.exchange(), method.pipeline(), method.expand, shared)
    server = Server(method, exchange, small.template(), initial, clients=7)
    rounds = Rounds(method, small, shared, initial)
    assert rounds.receive(rounds.messages(chunk), chunk.clients).all()
    rounds.end()
    assert same(server(server.begin(shared), rounds.receiver.sums), rounds.state)
    federations = [v for v in vars(server).values() if isinstance(v, Federation)]
    assert not federations
    assert server.template.x.shape[0] == 1
    assert not server.template.x.any()
