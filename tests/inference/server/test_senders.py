"""One message per client and round, of clients that exist."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from support.senders import CLIENTS, after, every, honest, rows

from hierfl.models import FedAvg


@every
def test_a_client_counts_once_in_a_round(case: tuple, caplog: pytest.LogCaptureFixture) -> None:
    """Fifty times the same message, in one call or in fifty."""
    server, messages, clients = honest(case)
    single = rows(messages, 0, 1)
    expected = after(copy.deepcopy(server), single, clients[:1])
    fifty = {g: {k: v.repeat_interleave(50, 0) for k, v in m.items()} for g, m in single.items()}
    together, apart = copy.deepcopy(server), copy.deepcopy(server)
    with caplog.at_level(logging.WARNING, "hierfl"):
        assert together.receive(fifty, clients[:1] * 50).tolist() == [True] + [False] * 49
    assert "had sent one in this round" in caplog.text
    assert [bool(apart.receive(single, clients[:1])) for _ in range(50)] == [True] + [False] * 49
    for each_server in (together, apart):
        assert each_server.receiver.sums.reported == 1
        each_server.end()
        assert each_server.skipped == 0
        assert each_server.rejected.tolist() == [49 * (j == clients[0]) for j in range(CLIENTS)]
        # A sum with 49 rows of zeros may round otherwise.
        assert all(torch.allclose(v, expected[k], rtol=1e-12) for k, v in each_server.shared.items())
        each_server.begin()
        assert each_server.receive(single, clients[:1]).all()  # a new round


@every
@pytest.mark.parametrize("index", [-1, CLIENTS, 10**30, True, 1.0, "0", None], ids=repr)
def test_a_client_that_does_not_exist_is_rejected(case: tuple, index: Any, caplog: pytest.LogCaptureFixture) -> None:
    server, messages, clients = honest(case)
    expected = after(copy.deepcopy(server), rows(messages, 1, CLIENTS), clients[1:])
    with caplog.at_level(logging.WARNING, "hierfl"):
        assert server.receive(messages, [index, *clients[1:]]).tolist() == [False] + [True] * 9
    assert "do not exist" in caplog.text
    assert server.receiver.unknown == 1
    server.end()
    assert not server.rejected.any()
    assert all(torch.allclose(v, expected[k], rtol=1e-12, atol=1e-12) for k, v in server.shared.items())


def test_a_message_that_cannot_be_read_is_no_clients_first() -> None:
    server, messages, clients = honest((FedAvg, {}))
    assert not server.receive({}, clients[:1]).any()
    assert server.receive(rows(messages, 0, 1), clients[:1]).all()
    assert server.rejected[clients[0]] == 1


@every
def test_a_client_that_says_it_failed_does_not_count(case: tuple) -> None:
    """Whatever its message holds: what failed may be what it has not sent."""
    server, messages, clients = honest(case)
    expected = after(copy.deepcopy(server), rows(messages, 1, CLIENTS), clients[1:])
    healthy = torch.arange(CLIENTS) > 0
    assert server.receive(messages, clients, healthy).tolist() == healthy.tolist()
    assert server.receiver.sums.reported == CLIENTS - 1
    assert server.receiver.sums.diverged == 1
    server.end()
    assert server.rejected.tolist() == [int(j == clients[0]) for j in range(CLIENTS)]
    assert all(torch.allclose(v, expected[k], rtol=1e-12, atol=1e-12) for k, v in server.shared.items())
