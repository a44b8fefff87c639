"""Noise on the sum over clients: changes that are clipped together, shares of the noise, coins of absent clients."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from support.federations import blobs
from support.methods import chunk_of
from torch import Tensor

from hierfl import Federation, UserError, fit
from hierfl.inference import Method
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.noise import Mechanism, Part, Plan, Privacy
from hierfl.inference.noise.clients import ROUNDS, noise_shares, with_client_noise
from hierfl.inference.options import Options
from hierfl.inference.server.exchange import Exchange
from hierfl.inference.state import State
from hierfl.models import IFCA, FedAvg, FedPAC, FedProto, PFedVEM, PFedVMP
from hierfl.nn.architecture import Architecture

CLIENT: dict[str, Any] = {"dp": "client", "epsilon": 4.0, "rounds": 2}


def private(method: Method, clients: int, **how: Any) -> Any:
    return with_client_noise(Options(**{**CLIENT, "dtype": torch.float64, **how}), method, clients)


def trained(method: Any, federation: Federation, multiplier: float, clip: float, **how: Any) -> ClientChunk:
    """Clients far from each other, with copies of what they would train."""
    chunk = chunk_of(method, federation)
    chunk = chunk.own(chunk.shared)
    for name, value in chunk.values.items():
        if name in chunk.shared:
            value += torch.linspace(0.01, 2, len(value)).view(-1, *[1] * (value.dim() - 1))
    plan = Plan("client", 1e-5, {ROUNDS: Part(Mechanism(ROUNDS, 1.0, 1), multiplier)})
    return dataclasses.replace(chunk, privacy=Privacy(plan, clip, **how))


def sent(method: Any, chunk: ClientChunk) -> dict[str, State]:
    return Exchange(method.exchange(), method.pipeline(), method.expand, chunk.shared).messages(chunk)


def flat(messages: dict[str, State]) -> Tensor:
    """(S, entries)."""
    return torch.cat([v.flatten(1) for group in messages.values() for v in group.values()], 1)


@pytest.mark.parametrize("cls", [FedAvg, PFedVEM])
def test_changes_of_all_groups_are_clipped_together_and_weights_stay(
    cls: type[Method], small: Federation, net: Architecture
) -> None:
    """A client's message has at most the bound's norm, in the direction of its change; short ones are as they are."""
    method, clip = private(cls(net), 7), 3.0
    chunk = trained(method, small, 0.0, clip)
    messages = sent(method, chunk)
    assert {key for group in messages.values() for key in group} == set(chunk.shared)
    change = {
        k: chunk.values["mu" if k == "w" and cls is PFedVEM else k].squeeze(1) - v for k, v in chunk.shared.items()
    }
    whole = torch.cat([change[k].flatten(1) for group in messages.values() for k in group], 1)
    norms = whole.norm(dim=1)
    assert float(norms.min()) < clip < float(norms.max())
    torch.testing.assert_close(flat(messages), whole * (clip / norms).clamp_max(1)[:, None], rtol=1e-9, atol=1e-12)
    assert float(flat(messages).norm(dim=1).max()) <= clip + 1e-9


def test_a_client_more_moves_the_sum_by_no_more_than_the_bound(small: Federation, net: Architecture) -> None:
    """Whatever it sends: zeros where it is not finite; the server divides by a public number."""
    method, clip = private(FedAvg(net), 7), 0.8
    chunk = trained(method, small, 0.0, clip)
    honest = flat(sent(method, chunk))
    for wild in (1e30, math.inf, math.nan):
        chunk.values["w"][3] = wild
        other = flat(sent(method, chunk))
        assert float((other[3]).norm()) == pytest.approx(clip if wild == 1e30 else 0.0)
        assert torch.equal(other[[0, 1, 2, 4, 5, 6]], honest[[0, 1, 2, 4, 5, 6]])


def test_shares_add_up_to_the_noise_and_lie_on_a_grid(net: Architecture) -> None:
    """Clients whose change is zero send their share of it; single precision holds their numbers exactly."""
    federation = blobs([3] * 50)
    for masked, shares in ((False, 50), (True, 50 - 16 - 16)):
        method, clip, z = private(FedAvg(net), 50, masked=masked), 0.5, 2.0
        chunk = dataclasses.replace(trained(method, federation, z, clip), values={}).own(trained(
            method, federation, z, clip).shared)  # fmt: skip
        messages = flat(sent(method, chunk))
        expected = z * clip / math.sqrt(shares)
        assert float(messages.std()) == pytest.approx(expected, rel=5 / math.sqrt(2 * messages.numel()))
        total = messages.sum(0)
        assert float(total.std()) == pytest.approx(expected * math.sqrt(50), rel=5 / math.sqrt(2 * len(total)))
        assert torch.equal(messages.float().double(), messages)
        step = method.changes.grid(clip, z)[1]
        assert torch.equal(messages / step, (messages / step).round())


@pytest.mark.parametrize(("clients", "left"), [(3, 2), (4, 2), (10, 4), (200, 68), (1000, 334)])
def test_under_masks_a_third_may_drop_out_and_a_third_may_tell(clients: int, left: int) -> None:
    assert noise_shares(clients, masked=True) == left
    assert noise_shares(clients, masked=False) == clients


def test_absent_clients_send_noise_alone_and_only_masks_hide_them(net: Architecture) -> None:
    """Coins are each client's; the accountant counts on them under masks; a site's are no function of the seed."""
    federation = blobs([3] * 60)
    method = private(FedAvg(net), 60, participation=0.25, masked=True)
    who = [flat(sent(method, trained(method, federation, 0.0, 1.0, **how))).any(1) for how in ({}, {}, {"seed": 1})]
    assert torch.equal(who[0], who[1])
    assert not torch.equal(who[0], who[2])
    assert 3 < int(who[0].sum()) < 30
    secret = [flat(sent(method, trained(method, federation, 0.0, 1.0, system=True))).any(1) for _ in range(2)]
    assert not torch.equal(*secret)
    for cls in (FedAvg, PFedVEM):  # a round's message is one release: one coin for all its groups
        of = private(cls(net), 60, participation=0.25, masked=True)
        groups = sent(of, trained(of, federation, 0.0, 1.0, system=True)).values()
        who = [torch.cat([v.flatten(1) for v in group.values()], 1).any(1) for group in groups]
        assert len(who) > 1
        assert all(torch.equal(coins, who[0]) for coins in who)

    def rate(masked: bool) -> float:
        options = Options(**CLIENT, participation=0.25, masked=masked)
        (mechanism,) = private(FedAvg(net), 60, participation=0.25, masked=masked).mechanisms(options)
        assert mechanism.releases == 2
        return float(mechanism.rate)

    assert (rate(True), rate(False)) == (0.25, 1.0)


def test_everybody_answers_and_the_server_divides_by_the_expected_number(
    net: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = blobs([4] * 12)
    how: dict[str, Any] = {"rounds": 1, "progress": False, "splits": (), "participation": 0.5}
    plan = Plan("client", 1e-5, {ROUNDS: Part(Mechanism(ROUNDS, 1.0, 1), 0.0)})
    monkeypatch.setattr(
        "hierfl.inference.engines.plate.privacy_of", lambda m, o: Privacy(plan, 1e3) if o.dp == "client" else None
    )
    run = fit(FedAvg(net), federation, dp="client", epsilon=1.0, **how)
    assert run.status is not None
    assert (run.status == 1).all()
    start = fit(FedAvg(net), federation, **{**how, "rounds": 0}).shared
    alone = [fit(FedAvg(net), federation.select([j]), **{**how, "participation": 1.0}).shared for j in range(12)]
    from hierfl.inference.noise.step_noise import KeyedSteps

    coins = KeyedSteps(0).coins(federation.keys, 1, 0.5, 1, "reports")[:, 0]
    assert 0 < int(coins.sum()) < 12
    for name, value in start.items():
        expected = value + sum(own[name] - value for own, heads in zip(alone, coins, strict=True) if heads) / 6
        torch.testing.assert_close(run.shared[name], expected, rtol=1e-4, atol=1e-5)


def test_values_without_weight_change_nothing(small: Federation, net: Architecture) -> None:
    """Of a cluster that a client is not in, of a class that it has not."""
    for cls in (IFCA, FedProto):
        method = private(cls(net), 7)
        chunk = trained(method, small, 0.0, 1e6)
        messages = flat(sent(method, chunk))
        assert messages.isfinite().all()
        assert messages.any(1).all()


@pytest.mark.parametrize(("cls", "words"), [(FedPAC, "looks at each client's"), (PFedVMP, "is no value over a weight")])
def test_what_is_no_sum_of_values_over_weights_is_refused(cls: type[Method], words: str, net: Architecture) -> None:
    with pytest.raises(UserError, match=words) as error:
        private(cls(net), 7)
    assert "\n" not in str(error.value)
