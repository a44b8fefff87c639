"""What the server tells single clients: each its own row, of those whose message was used; who cannot, refuses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.federations import blobs
from support.rounds import intercepted
from support.sites import HANDSHAKE, Sites
from torch import Tensor

from hierfl import Federation, UserError
from hierfl.data.outline import without_data
from hierfl.inference import fit
from hierfl.inference.engines.base import Broadcast
from hierfl.inference.engines.distributed import DistributedEngine
from hierfl.inference.engines.remote.engine import RemoteEngine
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.rules.means import UniformMean
from hierfl.inference.state import State
from hierfl.models import FedRep
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture


class Numbering(UniformMean):
    """Tells each client its number and the round's."""

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        context.replies["number"] = 10.0 * context.round + torch.arange(context.num_clients).double()
        return super().update(old, total, context)


class Numbered(FedRep):
    """FedRep whose clients have a number."""

    name = ""
    replies = ("number",)

    def personal(self, start: InitialWeights) -> State:
        return {**super().personal(start), "number": torch.tensor(-1.0)}

    def exchange(self) -> dict[str, Any]:
        return {"base": Numbering()}


@pytest.fixture
def fed() -> Federation:
    return blobs([9, 7, 4, 14, 5])


@pytest.fixture
def net(fed: Federation) -> Architecture:
    return architecture("mlp:5", fed)


HOW: dict[str, Any] = {"dtype": torch.float64, "evaluate_every": 10}


def spoilt(client: int, rounds: Sequence[int] = ()) -> Any:
    """One client's messages are not finite."""

    def change(messages: Any, clients: Sequence[int]) -> Any:
        rows = [row for row, j in enumerate(clients) if j == client]
        for message in messages.values():
            for value in message.values():
                value[rows] = torch.nan
        return messages

    return change


@pytest.mark.parametrize("home", ["device", "host"])
def test_who_was_used_takes_its_own_row(home: str, fed: Federation, net: Architecture) -> None:
    """The rejected, the absent, and all in a skipped round, keep what they have."""
    options = Options(rounds=9, participation=0.6, quorum=2, chunk=2, client_state=home, **HOW)  # type: ignore[arg-type]
    ready, known = Fit(Numbered(net), fed, options), [-1.0] * 5
    rejected = absent = 0
    for number in range(1, 10):
        with intercepted(spoilt(2)):
            ready.step()
        used = ready.used
        assert used is not None
        status = ready.journal.status[-1]
        rejected += int(status[2] == 2)
        absent += int((status == 0).sum())
        known = [10.0 * number + j if used[j] else value for j, value in enumerate(known)]
        for _ in range(2):  # however often it is said
            assert ready.fitted().personal["number"].tolist() == known
    assert rejected
    assert absent


def test_nobody_is_told_anything_of_a_skipped_round(fed: Federation, net: Architecture) -> None:
    ready = Fit(Numbered(net), fed, Options(rounds=3, quorum=5, **HOW))
    with intercepted(spoilt(2)):
        ready.step()
    assert bool(ready.state.last_skipped)
    assert ready.fitted().personal["number"].tolist() == [-1.0] * 5
    ready.step()
    assert ready.fitted().personal["number"].tolist() == [20.0, 21, 22, 23, 24]


def test_a_reply_that_is_not_finite_skips_the_round(fed: Federation, net: Architecture) -> None:
    class Wrong(Numbering):
        def update(self, old: State, total: State, context: AggregationContext) -> State:
            updated = super().update(old, total, context)
            context.replies["number"][3] = torch.nan
            return updated

    class Told(Numbered):
        def exchange(self) -> dict[str, Any]:
            return {"base": Wrong()}

    ready = Fit(Told(net), fed, Options(rounds=1, **HOW))
    ready.step()
    assert bool(ready.state.last_skipped)
    assert ready.fitted().personal["number"].tolist() == [-1.0] * 5


def test_a_resumed_run_knows_them(fed: Federation, net: Architecture, tmp_path: Path) -> None:
    """They are the clients' by the time a checkpoint is kept."""
    whole = fit(Numbered(net), fed, rounds=3, participation=0.6, progress=False, **HOW)
    fit(Numbered(net), fed, rounds=2, participation=0.6, folder=tmp_path, progress=False, **HOW)
    again = fit(Numbered(net), fed, rounds=3, participation=0.6, folder=tmp_path, resume=True, progress=False, **HOW)
    assert torch.equal(whole.personal["number"], again.personal["number"])
    assert len(set((whole.personal["number"] // 10).tolist())) > 1


@pytest.mark.parametrize("names", [(), ("mu",)])
def test_replies_that_are_not_declared_are_refused(names: tuple[str, ...], fed: Federation, net: Architecture) -> None:
    class Silent(Numbered):
        replies = names

    with pytest.raises(UserError, match="a rule replies 'number'"):
        Fit(Silent(net), fed, Options(rounds=1, **HOW)).step()


def test_replies_of_another_shape_are_refused(fed: Federation, net: Architecture) -> None:
    class Long(Numbered):
        def personal(self, start: InitialWeights) -> State:
            return {**FedRep.personal(self, start), "number": torch.zeros(2)}

    with pytest.raises(UserError, match=r"a rule replies 'number' \(5,\)"):
        Fit(Long(net), fed, Options(rounds=1, **HOW)).step()


def test_replies_are_personal_values(fed: Federation, net: Architecture) -> None:
    class Strange(Numbered):
        replies = ("head",)

    with pytest.raises(UserError, match=r"replies name 'head', which personal\(\) does not declare"):
        Fit(Strange(net), fed, Options(rounds=1, **HOW))


def unasked(*args: object) -> dict[str, Tensor]:
    raise AssertionError("a site was asked")


def test_sites_and_ranks_refuse_them(
    fed: Federation, net: Architecture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, before anything is sent or written."""
    line = "the server makes each client's 'number', and sites hear one broadcast"
    with pytest.raises(UserError, match=line):
        Sites(Numbered(net), fed, tmp_path, rounds=1)
    assert not list(tmp_path.iterdir())

    def engine(method: Any, federation: Federation, options: Options) -> RemoteEngine:
        return RemoteEngine(method, federation, options, clients=fed.ids, ask=unasked, handshake=HANDSHAKE)

    with pytest.raises(UserError, match=line):
        Fit(Numbered(net), without_data(fed), Options(rounds=1, **HOW), engine)
    ranked = object.__new__(DistributedEngine)  # without processes beside this one
    ranked.method = Numbered(net)
    exchange = Fit(Numbered(net), fed, Options(rounds=1, **HOW)).server.exchange
    assert not exchange.individual
    with pytest.raises(
        UserError, match="makes each client's 'number', and ranks hear one broadcast: take engine plate"
    ):
        ranked.begin({}, {}, exchange)


def test_a_broadcast_says_none_where_there_are_none(fed: Federation, net: Architecture) -> None:
    assert Broadcast(1, {}).replies == {}
    ready = Fit(FedRep(net), fed, Options(rounds=1, **HOW))
    ready.step()
    assert ready.state.replies == {}
