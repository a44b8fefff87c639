"""Answers that are garbled or hostile: the run goes on without them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
import torch
from support.sites import Sites, ready, same

from hierfl.inference import Run
from hierfl.inference.engines.base import ClientStatus
from hierfl.inference.engines.remote.wire import decode, encode
from hierfl.models import FedRep, PFedVEM

TWO_ROUNDS = {"rounds": 2, "participation": 1.0}


def garbled(request: bytes, answer: bytes) -> bytes:
    return b"\x00\x01" + answer[:100]


def huge(request: bytes, answer: bytes) -> bytes:
    return encode({"round": decode(request)[0]["round"]}, {"x": torch.zeros(10**6)})


def header(request: bytes, answer: bytes) -> bytes:
    return (2**62).to_bytes(8, "little") + answer[8:]


def other_round(request: bytes, answer: bytes) -> bytes:
    head, tensors = decode(answer)
    return encode({**head, "round": head["round"] + 1}, tensors)


def other_names(request: bytes, answer: bytes) -> bytes:
    head, tensors = decode(answer)
    return encode(head, {f"x{name}": value for name, value in tensors.items()})


def other_shapes(request: bytes, answer: bytes) -> bytes:
    head, tensors = decode(answer)
    return encode(head, {name: value[None] for name, value in tensors.items()})


def not_finite(request: bytes, answer: bytes) -> bytes:
    head, tensors = decode(answer)
    return encode(head, {name: value * torch.nan for name, value in tensors.items()})


def grossly_wrong(request: bytes, answer: bytes) -> bytes:
    head, tensors = decode(answer)
    return encode(head, {name: value * 1e200 for name, value in tensors.items()})


def an_error(request: bytes, answer: bytes) -> bytes:
    return encode({"client": "place-01", "error": "\x1b[31mno\nway " + "x" * 10_000}, {})


def a_list(request: bytes, answer: bytes) -> bytes:
    return encode({"round": [1], "reports": "yes"}, {})


HOSTILE: list[Callable[[bytes, bytes], bytes]] = [
    garbled, huge, header, other_round, other_names, other_shapes, not_finite, grossly_wrong, an_error, a_list,
]  # fmt: skip


def spoiling(sites: Sites, spoil: Callable[[bytes, bytes], bytes | None], requests: Mapping[str, bytes]) -> dict:
    """The answers to rounds and questions of scores, one of which is another, or has not come."""
    answers = sites.ask(requests)
    kind = decode(next(iter(requests.values())))[0]["kind"]
    if kind in ("round", "scores"):
        spoiled = spoil(requests["place-01"], answers.pop("place-01"))
        answers |= {} if spoiled is None else {"place-01": spoiled}
    return answers


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sites, Run]:
    """A fit in which these answers have not come."""
    lost = ready(PFedVEM, {}, tmp_path_factory.mktemp("lost"), **TWO_ROUNDS)
    return lost, lost.fit(partial(spoiling, lost, lambda request, answer: None))


@pytest.mark.parametrize("wrong", HOSTILE)
def test_what_is_no_answer_is_not_used(
    wrong: Callable[[bytes, bytes], bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture, without: tuple[Sites, Run]
) -> None:
    """The run goes on without it, as if it had not come, and says so in one line."""
    lost, expected = without
    caplog.clear()
    sites = ready(PFedVEM, {}, tmp_path, **TWO_ROUNDS)
    with caplog.at_level(logging.WARNING, "hierfl"):
        run = sites.fit(partial(spoiling, sites, wrong))
    same(expected, lost, run, sites, but="bytes")  # a message that is rejected for its numbers has arrived
    assert (run.participation["place-01"] == ClientStatus.REJECTED).all()
    lines = [record.getMessage() for record in caplog.records]
    rounds = [line for line in lines if "place-01 (round)" in line]
    refused = [line for line in lines if "place-01 refuses (failed)" in line]
    assert len(rounds) == 2 or len(refused) == 1, lines  # a refusal is said once
    assert all(line.isprintable() and len(line) < 400 for line in lines)


def scores_of(answer: bytes, **changed: float) -> bytes:
    """Other sums of metrics than a site has sent."""
    head, tensors = decode(answer)
    for name, value in tensors.items():
        if name.partition("|")[2] in changed:
            value.fill_(changed[name.partition("|")[2]])
    return encode(head, tensors)


def test_sums_that_cannot_be_one_clients_are_left_out(tmp_path: Path) -> None:
    """Metrics are then of the others."""
    how = {"rounds": 1, "participation": 1.0}

    def ask(sites: Sites, changed: dict[str, float] | None, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = sites.ask(requests)
        if decode(next(iter(requests.values())))[0]["kind"] == "scores":
            answer = answers.pop("place-01")
            answers |= {} if changed is None else {"place-01": scores_of(answer, **changed)}
        return answers

    plain = ready(FedRep, {}, tmp_path / "plain", **how)
    expected = plain.fit(partial(ask, plain, None))
    cannot_be = [
        {"accuracy": 1e300}, {"clients": 5.0}, {"clients": 1.0, "examples": 0.0}, {"brier": -1e6}, {"examples": 2.5},
    ]  # fmt: skip
    for number, changed in enumerate(cannot_be):
        sites = ready(FedRep, {}, tmp_path / str(number), **how)
        same(expected, plain, sites.fit(partial(ask, sites, changed)), sites)


def test_another_client_that_answers_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sites = ready(PFedVEM, {}, tmp_path, rounds=1, participation=1.0)

    def ask(requests: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = sites.ask(requests)
        return {**answers, "place-01": answers["place-00"]}

    run = sites.fit(ask)
    assert run.participation["place-01"].tolist() == [ClientStatus.REJECTED]
    assert "the answer of place-01 (hello) is not used: another client has answered" in caplog.text
