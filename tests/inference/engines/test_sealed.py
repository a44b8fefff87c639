"""Requests and replies that are signed and encrypted: what nobody but their true senders can have made is used."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.parties import Parties

from hierfl.inference.engines.remote.files import name_of
from hierfl.inference.engines.remote.keys import Identity
from hierfl.inference.engines.remote.sealed import (
    open_reply,
    open_request,
    question_digest,
    seal_reply,
    seal_request,
    sign_again,
)
from hierfl.inference.engines.remote.sealed_ask import SealedAsk
from hierfl.inference.engines.remote.wire import Handshake, Unreadable, decode, encode, header, is_cut_off

PARTIES = Parties.of(["north", "south"])
SERVER, NORTH, SOUTH = PARTIES.server, PARTIES.sites["north"], PARTIES.sites["south"]
STUDY = "a study"


def plain(kind: str = "round", client: str = "north", value: float = 1, study: str = STUDY, roster: str = "") -> bytes:
    """A request as the server's engine makes it."""
    head = {"kind": kind, "round": 3, "client": client, "handshake": Handshake(study, "m", roster, code="c").table()}
    return encode(head, {"w": torch.tensor([value, 2.0]), "n": torch.tensor(5)})


REQUEST = seal_request(plain(), SERVER, STUDY, 7)
HEAD = open_request(REQUEST, SERVER.card)[1]
QUESTION = question_digest(plain())
ANOTHER = ("1" if HEAD["signature"][0] == "0" else "0") + HEAD["signature"][1:]
ANSWER = encode({"client": "north", "round": 3}, {"sum": torch.arange(4.0)})
REPLY = seal_reply(ANSWER, NORTH, SERVER.card, HEAD, QUESTION, audit="ab12")


def changed(data: bytes, **entries: object) -> bytes:
    """With another outer header."""
    head, tensors = decode(data)
    return encode({**head, **entries}, tensors)


def other_body(data: bytes) -> bytes:
    """With a byte of the body changed."""
    head, tensors = decode(data)
    tensors["body"][-1] ^= 1
    return encode(head, tensors)


def opened(reply: bytes, identity: Identity = SERVER, question: str = QUESTION, study: str = STUDY) -> bytes:
    """As the server reads it that has asked north."""
    return open_reply(reply, identity, NORTH.card, question, study=study)


def test_what_was_sealed_opens_as_it_was() -> None:
    inside, head = open_request(REQUEST, SERVER.card, "north")
    assert inside == plain()
    assert (head["kind"], head["round"], head["client"], head["study"], head["sequence"]) == (
        "round", 3, "north", STUDY, 7,
    )  # fmt: skip
    assert opened(REPLY) == ANSWER


def test_whoever_carries_messages_reads_their_outer_header_and_sees_no_reply() -> None:
    assert name_of(REQUEST).startswith("000003-round-")
    assert header(REPLY)["refused"] == ""
    assert header(REPLY)["audit"] == "ab12"
    assert all(is_cut_off(data[:k]) for data in (REQUEST, REPLY) for k in (5, 60, len(data) - 1))
    assert not is_cut_off(REPLY)
    assert b"sum" not in REPLY
    assert torch.arange(4.0).numpy().tobytes() not in REPLY


@pytest.mark.parametrize(
    "request_",
    [
        *(changed(REQUEST, **entry) for entry in (
            {"kind": "finish"}, {"round": 4}, {"client": "south"}, {"study": "another"}, {"sequence": 8},
            {"signature": ""}, {"signature": "zz"}, {"signature": ANOTHER}, {"more": 1},
            {"round": True}, {"round": -1}, {"sealed": 3},
        )),
        other_body(REQUEST),
        plain(),
        seal_request(plain(), SOUTH, STUDY, 7),
        seal_request(plain(), Identity.make(SERVER.name), STUDY, 7),
        seal_request(plain(client="south"), SERVER, STUDY, 7),
        seal_request(plain(), SERVER, "another", 7),
        encode(decode(REQUEST)[0], {**decode(REQUEST)[1], "more": torch.zeros(1)}),
        REPLY,
    ],
    ids=["kind", "round", "client", "study", "sequence", "unsigned", "no-hex", "signature", "entry", "bool", "below",
         "format", "body", "plain", "other-site", "other-server", "for-south", "two-studies", "tensors", "a-reply"],
)  # fmt: skip
def test_a_request_that_the_server_has_not_signed_for_this_site_is_refused(request_: bytes) -> None:
    with pytest.raises(Unreadable):
        open_request(request_, SERVER.card, "north")


def reply_of(identity: Identity, question: str = QUESTION, server: Identity = SERVER, **head: object) -> bytes:
    return seal_reply(ANSWER, identity, server.card, {**HEAD, **head}, question)


@pytest.mark.parametrize(
    "reply",
    [
        *(changed(REPLY, **entry) for entry in (
            {"round": 4}, {"client": "south"}, {"study": "another"}, {"question": "0" * 64}, {"refused": "policy"},
            {"refused": "a patient's name"}, {"audit": "cd"}, {"ephemeral": "00" * 32}, {"signature": "00" * 64},
        )),
        other_body(REPLY),
        ANSWER,
        reply_of(SOUTH),
        reply_of(Identity.make("north")),
        reply_of(NORTH, question_digest(plain(value=2.0))),
        reply_of(NORTH, study="another"),
        reply_of(NORTH, server=Identity.make(SERVER.name)),
        changed(reply_of(SOUTH), client="north"),
        REQUEST,
    ],
    ids=["round", "client", "study", "question", "refused", "words", "audit", "key", "signature", "body", "plain",
         "of-south", "of-somebody", "of-another-request", "of-another-study", "for-another-server", "as-if-north",
         "a-request"],
)  # fmt: skip
def test_a_reply_that_is_not_this_sites_to_this_question_is_refused(reply: bytes) -> None:
    with pytest.raises(Unreadable):
        opened(reply)


def test_a_site_cannot_send_as_its_own_what_another_has_encrypted() -> None:
    """South signs north's ciphertext: it is sealed for north's question, and opens for nobody else."""
    head, tensors = decode(REPLY)
    own = decode(reply_of(SOUTH))[0]
    for entries in ({"client": "south"}, {**own, "ephemeral": head["ephemeral"]}):
        stolen = sign_again(encode({**head, **entries}, tensors), SOUTH)
        with pytest.raises(Unreadable, match="another key"):
            open_reply(stolen, SERVER, SOUTH.card, QUESTION, study=STUDY)


def test_no_two_seals_of_one_reply_have_a_key_in_common() -> None:
    """A site's folder that is restored from a backup seals once more: with another key, and the same answer."""
    again = seal_reply(ANSWER, NORTH, SERVER.card, HEAD, QUESTION, audit="ab12")
    assert header(again)["ephemeral"] != header(REPLY)["ephemeral"]
    assert not torch.equal(decode(again)[1]["body"], decode(REPLY)[1]["body"])
    assert opened(again) == opened(REPLY) == ANSWER


def test_a_question_has_one_digest_whatever_the_roster_and_another_one_another() -> None:
    assert question_digest(plain(roster="others", study="later")) == QUESTION
    others = [plain(value=2.0), plain(kind="scores"), plain(client="south")]
    assert len({QUESTION, *map(question_digest, others)}) == 4
    head, tensors = decode(plain())
    reshaped = {"w": tensors["w"].reshape(1, 2), "n": tensors["n"]}
    renamed = {"v": tensors["w"], "n": tensors["n"]}
    other_type = {"w": tensors["w"].view(torch.int32), "n": tensors["n"]}
    for case in (reshaped, renamed, other_type):
        assert question_digest(encode(head, case)) != QUESTION
    assert question_digest(encode(head, dict(reversed(tensors.items())))) == QUESTION


def test_rotated_keys_open_what_was_stored_and_sign_anew() -> None:
    """A site's new key signs a stored reply again; the server's earlier key opens what was sealed to it."""
    new_north, new_server = Identity.make("north"), Identity.make(SERVER.name)
    again = sign_again(REPLY, new_north)
    assert open_reply(again, SERVER, new_north.card, QUESTION, study=STUDY) == ANSWER
    with pytest.raises(Unreadable, match="not signed by north"):
        opened(again)
    with pytest.raises(Unreadable, match="another key"):
        opened(REPLY, new_server)
    assert open_reply(REPLY, new_server, NORTH.card, QUESTION, study=STUDY, earlier=[SERVER]) == ANSWER


@given(st.binary(max_size=400), st.integers(0, 2000), st.integers(0, 255))
@settings(max_examples=60, deadline=None)
def test_whatever_bytes_come_are_opened_or_refused(noise: bytes, position: int, value: int) -> None:
    """Noise, a beginning, and a message with one byte changed: never another error, and never other content."""
    for data, read, whole in (
        (REQUEST, lambda d: open_request(d, SERVER.card, "north")[0], plain()),
        (REPLY, opened, ANSWER),
    ):
        at = position % len(data)
        for case in (noise, data[:at], data[:at] + noise, data[:at] + bytes([value]) + data[at + 1 :]):
            try:
                assert read(case) == whole
            except Unreadable as error:
                assert "\n" not in str(error)  # noqa: PT017


# -- the server's end ---------------------------------------------------------------------------------------------


def asking(folder: Path, *, courier: Callable[[dict[str, bytes]], dict[str, bytes]]) -> SealedAsk:
    return SealedAsk(courier, SERVER, PARTIES.cards, folder)


def test_the_server_uses_true_replies_and_says_whose_are_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asked = {name: plain(client=name) for name in PARTIES.sites}
    sites = {name: PARTIES.answering(name, lambda request: ANSWER) for name in asked}

    def swapped(requests: dict[str, bytes]) -> dict[str, bytes]:
        """North's as it is, and once more as if it were south's."""
        north = sites["north"](requests["north"])
        return {"north": north, "south": north}

    with caplog.at_level(logging.WARNING, logger="hierfl"):
        assert asking(tmp_path, courier=swapped)(asked) == {"north": ANSWER}
    assert [record.getMessage() for record in caplog.records] == [
        "the reply of south is dropped: another client has answered"
    ]
    honest = asking(tmp_path, courier=lambda requests: {name: sites[name](r) for name, r in requests.items()})
    assert honest(asked) == {"north": ANSWER, "south": ANSWER}


def test_requests_are_numbered_for_each_client_also_after_a_kill(tmp_path: Path) -> None:
    """The last one asked once more is the same bytes: its reply may be there already."""
    seen: list[tuple[str, int, bytes]] = []

    def courier(requests: dict[str, bytes]) -> dict[str, bytes]:
        on_disk = json.loads((tmp_path / "sequence.json").read_text())
        for name, data in requests.items():
            sequence = header(data)["sequence"]
            assert on_disk[name]["number"] == sequence
            seen.append((name, sequence, data))
        return {}

    asking(tmp_path, courier=courier)({name: plain(client=name) for name in PARTIES.sites})
    for value in (1.0, 2.0, 1.0):
        asking(tmp_path, courier=courier)({"south": plain(client="south", value=value)})
    assert [entry[:2] for entry in seen] == [("north", 1), ("south", 1), ("south", 1), ("south", 2), ("south", 3)]
    assert seen[1] == seen[2]


def test_a_refusal_that_somebody_else_has_written_is_none(tmp_path: Path) -> None:
    """Its site is waited for in the next round."""

    class Courier:
        refusing: ClassVar[set[str]] = set()

        def __call__(self, requests: dict[str, bytes]) -> dict[str, bytes]:
            self.refusing |= set(requests)  # as a courier does that reads outer headers
            replies = {}
            for name, request in requests.items():
                head, question = decode(request)[0], question_digest(plain(client=name))
                by = PARTIES.sites[name] if name == "south" else Identity.make(name)
                refusal = encode({"error": "refused", "refused": "policy"}, {})
                replies[name] = seal_reply(refusal, by, SERVER.card, head, question, refused="policy")
            return replies

    courier = Courier()
    asked = {name: plain(client=name) for name in PARTIES.sites}
    assert asking(tmp_path, courier=courier)(asked).keys() == {"south"}
    assert courier.refusing == {"south"}
