"""A server that lies to sites, differently to each, opens nothing; a site that lies spoils a sum and learns nothing."""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.masked_sites import Masked, numbers, plain

from hierfl.errors import UserError
from hierfl.inference.engines.remote.keys import Identity
from hierfl.inference.engines.remote.masks.parts import Mode
from hierfl.inference.engines.remote.masks.streams import digest_of
from hierfl.inference.engines.remote.wire import decode, encode, header

FOUR = numbers(4)
MODES: list[Mode] = ["whole", "shares"]
Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], object]
#: what a server may say to one site otherwise than to the others, in a masked question
LIES: dict[str, Change] = {
    "broadcast": lambda head, tensors: tensors["shared"].add_(1e-9),
    "a tensor more": lambda head, tensors: tensors.update(more=torch.zeros(1)),
    "round": lambda head, tensors: head.update(round=2),
    "kind": lambda head, tensors: head.update(kind="scores"),
    "another entry": lambda head, tensors: head.update(split="train"),
    "restart": lambda head, tensors: head.update(restart=1),
    "study": lambda head, tensors: head["handshake"].update(study="another"),
    "epoch": lambda head, tensors: head["masks"].update(epoch=7),
    "table": lambda head, tensors: head["masks"].update(table="0" * 64),
    "mode": lambda head, tensors: head["masks"].update(mode="whole" if head["masks"]["mode"] == "shares" else "shares"),
    "slot": lambda head, tensors: head["masks"].update(slot=3),
    "members": lambda head, tensors: head["masks"].update(members=["s000", "s001", "s002"]),
    "no masks": lambda head, tensors: head.pop("masks"),
    "group": lambda head, tensors: head["masks"].update(group=0),
    "counted": lambda head, tensors: head.update(counted=5),
    "who reports": lambda head, tensors: head["masks"]["own"].update({"": {"counted": 0, "reports": False}}),
    "own of nobody": lambda head, tensors: head["masks"].update(own={"s001": {"counted": 0}}),
    "own as text": lambda head, tensors: head["masks"].update(own="all"),
    "masks as text": lambda head, tensors: head.update(masks="all"),
    "epoch as text": lambda head, tensors: head["masks"].update(epoch="1"),
    "slot below": lambda head, tensors: head["masks"].update(slot=-1),
    "mode as list": lambda head, tensors: head["masks"].update(mode=["whole"]),
}  # fmt: skip


def changed(request: bytes, lie: Change) -> bytes:
    """A request that says something else."""
    head, tensors = decode(request)
    lie(head, tensors)
    return encode(head, tensors)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lie", LIES)
def test_what_is_not_said_to_all_alike_is_not_in_a_sum(mode: Mode, lie: str, tmp_path: Path) -> None:
    masked = Masked(tmp_path, FOUR, mode=mode)
    masked.change = lambda name, request: (
        changed(request, LIES[lie]) if name == "s001" and header(request)["kind"] == "round" else request
    )
    total = masked.sum()
    if total is not None:  # it has refused, and the others' sum is theirs; or what it was told means the same
        names = [list(FOUR)[client] for client in total.clients]
        assert mode == "shares" or lie in ("slot", "slot below")
        assert mode == "whole" or "s001" not in names
        assert torch.allclose(total.sums["x"], plain(FOUR, names)["x"], rtol=1e-14)


def test_what_a_server_says_to_itself_does_not_open_what_sites_were_told_apart(tmp_path: Path) -> None:
    """Two sites with one broadcast and two with another: no list has three signatures."""
    masked = Masked(tmp_path, FOUR, mode="shares")
    masked.change = lambda name, request: (
        changed(request, LIES["broadcast"])
        if name in ("s002", "s003") and header(request)["kind"] == "round"
        else request
    )
    total = masked.sum()
    assert total is None or not total.opened
    assert {header(q)["kind"] for _, q, _ in masked.transcript} == {"keys", "shares", "round", "sign"}


def test_sites_of_another_roster_take_no_keys(tmp_path: Path) -> None:
    masked = Masked(tmp_path, FOUR)
    masked.cards = {**masked.cards, "s003": Identity.make("s003").card}
    masked.sites["s001"] = masked.site("s001")
    assert masked.sum() is None
    with pytest.raises(UserError, match="the keys of s003 are not those of its card"):
        masked.site("s003")


def _forged(texts: dict[str, str], masked: Masked) -> dict[str, dict[str, Any]]:
    """Tables of keys that a server may make up."""
    own, other = base64.b64decode(texts["s001"]), base64.b64decode(texts["s002"])
    signed = masked.identities["s002"].sign(own[:-64])
    return {
        "signed by another site": {"s001": base64.b64encode(own[:-64] + signed).decode()},
        "of another site": {"s001": texts["s002"]},
        "keys of one, signature of another": {"s001": base64.b64encode(own[:-64] + other[-64:]).decode()},
        "a bit": {"s001": base64.b64encode(bytes([own[0] ^ 1]) + own[1:]).decode()},
        "cut off": {"s001": base64.b64encode(own[:-1]).decode()},
        "no text": {"s001": 7},
        "nobody": {"mallory": texts["s001"]},
        "a name for this site": {"s000": texts["s003"]},
    }


def test_forged_keys_are_refused(tmp_path: Path) -> None:
    masked = Masked(tmp_path, FOUR, mode="shares")
    masked.away = {"shares": list(FOUR)}
    assert masked.sum() is None  # keys are there, and have gone to nobody
    texts, carrying = masked.server.carrying.state.keys, masked.server.carrying
    head = {
        "kind": "shares", "round": 0, "client": "s000", "handshake": masked.questions.handshake.table(),
        "masks": {"epoch": 1, "table": carrying.table.digest, "keys": texts},
    }  # fmt: skip
    site = masked.sites["s000"]
    tables = {what: {**texts, **more} for what, more in _forged(texts, masked).items()}
    tables["two sites alone"] = {name: texts[name] for name in ("s000", "s001")}
    tables["without its own"] = {name: text for name, text in texts.items() if name != "s000"}
    for what, keys in tables.items():
        table = digest_of("keys", site.handshake.study, site.ring.roster, 1, 8, keys)  # as a server says it
        reply = header(site.answer(encode({**head, "masks": {"epoch": 1, "table": table, "keys": keys}}, {})))
        assert "error" in reply, what
        assert site.ring.table is None or what == "two sites alone"  # whose signatures are right
        site.ring.table = None
    assert "packets" in decode(site.answer(encode(head, {})))[1]
    fewer = {name: texts[name] for name in list(texts)[:3]}
    reply = header(site.answer(encode({**head, "masks": {**head["masks"], "keys": fewer, "table": "1" * 64}}, {})))
    assert reply["rekey"] == 1  # one table for an epoch


@pytest.mark.parametrize("mode", MODES)
def test_one_sum_is_opened_of_a_broadcast(mode: Mode, tmp_path: Path) -> None:
    """Asked again in another round, under another restart, it is over the same sites, or it is none."""
    five = numbers(5)
    masked = Masked(tmp_path, five, mode=mode)
    tensors = {"shared": torch.zeros(3)}

    def asked(number: int, **own: Any) -> Any:
        return masked.server.ask({"kind": "round", "round": number}, tensors, masked.form, own or None)

    total = asked(1)
    assert total is not None
    masked.questions.counted += 1  # of all: what was broadcast has not changed by it
    again = asked(2)
    assert again is not None
    assert torch.equal(again.sums["x"], total.sums["x"])
    masked.questions.counted[4] = 0  # that site would begin from other values of its own
    assert asked(3) is None
    masked.questions.counted[4] = 1
    masked.away = {"round": ["s004"]}
    assert asked(3) is None
    masked.away = {}
    few = {"adding": list(masked.values)[:4]}
    assert masked.server.ask({"kind": "round", "round": 4, **few}, tensors, masked.form) is None
    masked.questions.restarts = 1
    assert asked(1) is not None
    tensors = {"shared": torch.ones(3)}
    assert masked.server.ask({"kind": "round", "round": 5, **few}, tensors, masked.form) is not None


@pytest.mark.parametrize("spoilt", [1, 2])
def test_a_site_that_gives_wrong_shares_does_no_harm_alone(spoilt: int, tmp_path: Path) -> None:
    """Of seven, five are needed: without one liar six are left; two among the first five void the sum."""
    seven = numbers(7)
    masked = Masked(tmp_path, seven, mode="shares")
    real = masked.ask

    def lying(requests: Any) -> Any:
        answers = real(requests)
        for name in list(seven)[:spoilt]:
            if name in answers and "shares" in (decoded := decode(answers[name]))[1]:
                answers[name] = encode(decoded[0], {"shares": decoded[1]["shares"].flip(0)})
        return answers

    masked.questions.ask = lying
    total = masked.sum()
    assert (total is None) == (spoilt == 2)
    assert total is None or torch.allclose(total.sums["x"], plain(seven)["x"], rtol=1e-14)


@pytest.mark.parametrize("mode", MODES)
def test_answers_that_are_none_are_not_added(mode: Mode, tmp_path: Path) -> None:
    masked = Masked(tmp_path, FOUR, mode=mode)
    real, turn = masked.ask, iter(range(100))
    others = [
        {"masked": torch.zeros(5, dtype=torch.int64)}, {"masked": torch.zeros(5)}, {}, {"more": torch.zeros(1)},
    ]  # fmt: skip

    def lying(requests: Any) -> Any:
        answers = real(requests)
        if "s001" in answers and "masked" in header(answers["s001"]):
            answers["s001"] = encode(header(answers["s001"]), others[next(turn) % 4])
        return answers

    masked.questions.ask = lying
    for number in range(1, 5):
        total = masked.sum(number)
        assert (total is None) == (mode == "whole")
        assert total is None or total.clients == [0, 2, 3]


def test_a_counted_lie_is_no_sum(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    masked = Masked(tmp_path, FOUR)
    real = copy.copy(masked.sites["s001"])._mask

    def lying(row: np.ndarray, *more: Any) -> None:
        row[0] += 9
        real(row, *more)

    masked.sites["s001"]._mask = lying  # type: ignore[method-assign]
    assert masked.sum() is None
    assert "masked counts cannot be" in caplog.text
