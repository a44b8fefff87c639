"""What a site does as a sum is opened: it signs one list of survivors, and gives one share of each site, ever."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from support.masked_sites import Masked, altered, numbers

from hierfl.inference.engines.remote.keys import Identity
from hierfl.inference.engines.remote.masks.dealing import PACKET_BYTES
from hierfl.inference.engines.remote.masks.groups import threshold
from hierfl.inference.engines.remote.masks.layout import Layout
from hierfl.inference.engines.remote.masks.lists import Listed
from hierfl.inference.engines.remote.masks.presence import TOLD_BYTES
from hierfl.inference.engines.remote.masks.shamir import SHARE_BYTES
from hierfl.inference.engines.remote.masks.streams import add_pairs, agreed
from hierfl.inference.engines.remote.masks.survivors import SurvivorList
from hierfl.inference.engines.remote.wire import decode, encode, header

FOUR = numbers(4)


@pytest.fixture
def open_sum(tmp_path: Path) -> Masked:
    """A sum that was opened over three of four: the fourth one's answer was late."""
    masked = Masked(tmp_path, FOUR, mode="shares")
    masked.away = {"-round": ["s003"]}
    total = masked.sum()
    assert total is not None
    assert total.clients == [0, 1, 2]
    return masked


def _request(masked: Masked, kind: str, name: str = "s000") -> bytes:
    return next(q for who, q, _ in masked.transcript if who == name and header(q)["kind"] == kind)


def test_a_site_signs_one_list_and_gives_one_share_of_each_site(open_sum: Masked) -> None:
    """Also where everybody has signed another list: their keys are the test's here, and not the server's."""
    masked, (sign, opening) = open_sum, (_request(open_sum, kind) for kind in ("sign", "open"))
    first = header(sign)["masks"]["list"]
    site, given = masked.sites["s000"], header(masked.sites["s000"].answer(opening))["of"]
    assert given == list(FOUR)
    for change in (
        {"survivors": list(FOUR)}, {"survivors": ["s000", "s001", "s003"]}, {"context": "1" * 64}, {"own": "1" * 64},
        {"broadcast": "1" * 64}, {"members": ["s000", "s001", "s002"]}, {"table": "1" * 64}, {"slot": 1},
    ):  # fmt: skip
        other = {**first, **change}
        reply = header(site.answer(altered(sign, list=other)))
        assert "signature" not in reply, change
        listed = SurvivorList.read(other)
        signatures = {name: listed.signature(identity).hex() for name, identity in masked.identities.items()}
        packets = header(opening)["masks"]["packets"]
        head, tensors = decode(site.answer(altered(opening, list=other, signatures=signatures, packets=packets)))
        assert "error" in head, change
        assert not tensors, change
    assert site.answer(sign) == site.answer(sign)


def test_lists_without_two_thirds_of_signatures_open_nothing(open_sum: Masked) -> None:
    site, opening = open_sum.sites["s000"], _request(open_sum, "open")
    signatures = header(opening)["masks"]["signatures"]
    assert len(signatures) == 3
    wrong = signatures["s000"][:-2] + ("00" if signatures["s000"][-2:] != "00" else "01")
    stranger = SurvivorList.read(header(opening)["masks"]["list"]).signature(Identity.make("mallory")).hex()
    for given in (
        {}, {name: signatures[name] for name in ("s000", "s001")}, {**signatures, "s000": wrong},
        {**signatures, "s003": signatures["s000"]}, {**signatures, "mallory": stranger}, {**signatures, "s001": 7},
        {"s000": signatures["s000"], "s001": signatures["s000"], "s002": signatures["s000"]}, None, [],
    ):  # fmt: skip
        head, tensors = decode(site.answer(altered(opening, signatures=given)))
        assert "error" in head
        assert not tensors


def test_lists_that_are_none_are_refused(open_sum: Masked) -> None:
    site, sign = open_sum.sites["s000"], _request(open_sum, "sign")
    first = header(sign)["masks"]["list"]
    for change in (
        {"survivors": ["s000", "s002", "s001"]}, {"survivors": ["s000", "s000", "s001"]}, {"survivors": "s000"},
        {"survivors": ["s000", "s001"]}, {"members": []}, {"slot": "0"}, {"slot": True}, {"slot": 99}, {"own": 7},
        {"survivors": ["s000", "s001", "s009"]}, {"more": 1},
    ):  # fmt: skip
        assert "error" in header(site.answer(altered(sign, list={**first, **change}))), change
    for value in (None, [], "list", {}):
        assert "error" in header(site.answer(altered(sign, list=value)))


def test_swapped_shares_are_not_given(open_sum: Masked) -> None:
    site, opening = open_sum.sites["s000"], _request(open_sum, "open")
    data = base64.b64decode(header(opening)["masks"]["packets"])
    first, second, third = (data[at : at + PACKET_BYTES] for at in range(0, len(data), PACKET_BYTES))
    others = _request(open_sum, "open", "s001")
    theirs = base64.b64decode(header(others)["masks"]["packets"])[PACKET_BYTES : 2 * PACKET_BYTES]
    for packets, given in (
        (second + first + third, ["s000", "s003"]), (first + theirs + third, ["s000", "s001", "s003"]),
        (bytes(3 * PACKET_BYTES), ["s000"]),
    ):  # fmt: skip
        answer = site.answer(altered(opening, packets=base64.b64encode(packets).decode()))
        assert header(answer)["of"] == given
        assert tuple(decode(answer)[1]["shares"].shape) == (len(given), SHARE_BYTES)
    for packets in (first + second, data + first, None):
        text = None if packets is None else base64.b64encode(packets).decode()
        assert "error" in header(site.answer(altered(opening, packets=text)))


def test_a_late_answer_of_a_site_that_was_declared_lost_opens_nothing(open_sum: Masked) -> None:
    """With the secret of its pairwise masks, which the server has now, the mask of its own still hides it."""
    masked, site = open_sum, open_sum.sites["s003"]
    answer = next(a for name, a in masked.rows() if name == "s003")
    late = decode(answer)[1]["masked"].numpy().view(np.uint64).copy()
    question = site.ring.slots[0].question
    keys = masked.server.carrying.table.keys
    private = X25519PrivateKey.from_private_bytes(bytes.fromhex(site.ring.slots[0].key))
    pairs = [(name, agreed(private, keys[name].slots[0])) for name in list(FOUR)[:3]]
    words = Layout(masked.form, len(FOUR)).words
    add_pairs(late, "s003", pairs, question["context"], words, undo=True)
    assert late[0] > 1000  # the count of reports is not 1
    opening = header(_request(masked, "open"))["masks"]
    other = {**opening["list"], "survivors": list(FOUR)}
    for name in list(FOUR)[:3]:
        head = header(masked.sites[name].answer(altered(_request(masked, "open", name), list=other)))
        assert head["refused"] in ("answered", "failed")
    assert header(site.answer(altered(_request(masked, "round", "s003")))).get("masked") is True  # the same again


def test_a_site_that_was_closed_out_answers_no_more(tmp_path: Path) -> None:
    """It has signed a list without itself: its answer would be of no use to the sum."""
    masked = Masked(tmp_path, FOUR, mode="shares")
    masked.away = {"round": ["s003"]}
    assert masked.sum() is not None
    late = altered(_request(masked, "round"))
    head, tensors = decode(late)
    late = encode({**head, "client": "s003"}, tensors)
    sign = _request(masked, "sign")
    rows = {name: decode(answer)[1]["told"] for name, answer in masked.rows()}
    told = Listed(SurvivorList.read(header(sign)["masks"]["list"]), rows).packets_for("s003")
    sign = encode({**header(altered(sign, told=told)), "client": "s003"}, {})
    assert "signature" in header(masked.sites["s003"].answer(sign))
    assert header(masked.sites["s003"].answer(late))["refused"] == "answered"


@pytest.mark.parametrize("sites", [4, 7])
def test_a_site_that_has_not_answered_is_no_survivor(sites: int, tmp_path: Path) -> None:
    """Its own mask would be known before it is used: with keys of lost sites and of colluders its message is, too."""
    colluding, lost = (sites - 1) // 3, sites - threshold(sites)
    masked = Masked(tmp_path, numbers(sites), mode="shares")
    names = list(masked.values)
    victim, colluders, away = names[0], names[1 : 1 + colluding], names[sites - lost :]
    masked.away = {"round": [victim, *away]}
    masked.flags = {name: {"reported": False} for name in names}
    assert masked.sum(adding=[]) is None  # of this question nobody is to have a message
    others = [name for name in names if name not in masked.away["round"]]
    question = masked.sites[others[0]].ring.slots[0].question
    survived = SurvivorList(
        masked.server.carrying.table.digest, 0, *(question[entry] for entry in ("context", "broadcast", "own")),
        tuple(names), (victim, *others),
    )  # fmt: skip
    rows = {name: decode(answer)[1]["told"] for name, answer in masked.rows()}
    rows[victim] = torch.zeros((sites - 1, TOLD_BYTES), dtype=torch.uint8)
    told = Listed(survived, rows)
    asked = decode(next(q for _, q, _ in masked.transcript if header(q)["kind"] == "round"))[0]
    signatures = {name: survived.signature(masked.identities[name]).hex() for name in colluders}
    for name in (*others[colluding:], *away):
        masks = {key: asked["masks"][key] for key in ("epoch", "table")}
        masks |= {"keys": masked.server.carrying.state.keys, "list": survived.as_json(), "told": told.packets_for(name)}
        head = {**asked, "kind": "sign", "client": name, "masks": masks}
        reply = header(masked.sites[name].answer(encode(head, {})))
        if "signature" in reply:
            signatures[name] = reply["signature"]
    assert set(signatures) == set(colluders)
