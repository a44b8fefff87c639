"""Refusals at the server: what needs all ends at once, and a round goes on by quorum."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from support.sites import ready

from hierfl.errors import UserError
from hierfl.inference.engines.remote.refusals import CLASSES, LASTING, OF_ALL, ends_waiting, refusal, refusal_in
from hierfl.inference.engines.remote.wire import encode, header
from hierfl.models import PFedVEM


def refusing(sites: object, name: str, kinds: tuple[str, ...], reason: str) -> object:
    """Asks; one site refuses some kinds of requests."""

    def ask(requests: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = sites.ask(requests)  # type: ignore[attr-defined]
        for client, request in requests.items():
            if client == name and header(request)["kind"] in kinds:
                answers[client] = encode({"client": client, "error": "no", "refused": reason}, {})
        return answers

    return ask


def test_a_round_goes_on_by_quorum(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The one that refuses is rejected in each round; the log says who, and the class."""
    sites = ready(PFedVEM, {}, tmp_path, participation=1.0)
    run = sites.fit(refusing(sites, "place-01", ("round",), "budget"))
    assert run.participation["place-01"].tolist() == [2] * 4
    assert run.participation["place-00"].tolist() == [1] * 4
    assert "place-01 refuses (budget): its own log says why" in caplog.messages
    assert not [line for line in caplog.messages if "is not used" in line]  # one line says it


def test_a_quorum_that_cannot_be_reached_ends_it(tmp_path: Path) -> None:
    sites = ready(PFedVEM, {}, tmp_path, participation=1.0, quorum=4)
    words = r"a round counts with 4 messages, and fewer can come; place-01 refuses \(policy\): its own log says why"
    with pytest.raises(UserError, match=words):
        sites.fit(refusing(sites, "place-01", ("round",), "policy"))


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ({"refused": "policy"}, "policy"), ({"refused": "age 93"}, "failed"), ({"error": "x"}, "failed"),
        ({"error": "x", "unprepared": True}, ""), ({"round": 1, "refused": ""}, ""), ({}, ""),
        ({"refused": 3}, "failed"),
    ],
)  # fmt: skip
def test_classes(head: dict, expected: str) -> None:
    """Of what a site says no more than a class is taken."""
    assert refusal(head) == refusal_in(encode(head, {})) == expected
    assert refusal_in(b"nothing") == ""


def test_what_a_refusal_ends() -> None:
    """A failure that the next round may mend ends the waiting for sums, and not for a round of a mixed model."""
    for reason in CLASSES:
        reply = [encode({"refused": reason}, {})]
        assert ends_waiting("prepare", OF_ALL, reply)
        assert not ends_waiting("round", OF_ALL, reply)
        assert ends_waiting("round", OF_ALL | {"round"}, reply) == (reason in LASTING)
    assert not ends_waiting("prepare", OF_ALL, [encode({"round": 0}, {})])
