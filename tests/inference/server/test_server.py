"""The server in a round: invalid and malformed messages, the quorum, clients that diverge."""

from __future__ import annotations

import dataclasses
import logging

import pytest
import torch
from support.methods import chunk_of
from support.rounds import Rounds

from hierfl import Federation
from hierfl.inference import fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.method.initial import InitialWeights
from hierfl.models import PFedVEM
from hierfl.nn.architecture import Architecture


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
    row = {group: {k: v[:1] for k, v in message.items()} for group, message in messages.items()}
    spoilt = [
        ({"w": row["w"]}, "expected ['base', 'w']"),
        ({**row, "w": {"tau": row["w"]["tau"]}}, "'w' is missing"),
        ({**row, "w": {**row["w"], "w": row["w"]["w"][:, :3]}}, "'w' has shape (3,), expected (18,)"),
        ({**row, "w": {**row["w"], "w": row["w"]["w"].long()}}, "'w' is of torch.int64 on cpu, expected torch.float64"),
        ({**row, "w": {**row["w"], "tau": [1.0]}}, "'tau' is no dense tensor"),
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

    x = small.x.clone()
    x[small.train[3]] *= 1e200  # its likelihood overflows
    sick = dataclasses.replace(small, x=x)
    with caplog.at_level(logging.WARNING, "hierfl"):
        run = fit(PFedVEM(net), sick, rounds=2, dtype=torch.float64, progress=False)
    assert "round 1: 1 client diverged and kept the previous state: place-03" in caplog.text
    assert run.last()["diverged"] == 2
    assert run.last()["rejected"] == 2
    start = PFedVEM(net).shared(InitialWeights.for_network(net, 0))["w"].double()
    assert torch.equal(run.personal["mu"][3], start)
    assert all(v.isfinite().all() for v in {**run.shared, **run.personal, **run.fitted.copies}.values())
    assert not torch.equal(run.personal["mu"][0], start)
