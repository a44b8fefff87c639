"""Flower's own apps in one process: the same numbers as through plain bytes, whatever nodes do."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.masked import mixed
from support.model_studies import model_sites
from support.representatives import of_all
from support.sites import Sites, ready, same
from support.studies import FileStudy

from hierfl.errors import UserError
from hierfl.experiments.federate.server import serve
from hierfl.experiments.federate.study import Study
from hierfl.inference import Method, Run
from hierfl.inference.engines.remote.preparation import endings
from hierfl.inference.engines.remote.wire import encode, header
from hierfl.inference.run.checkpoint import load
from hierfl.models import FedPop, PFedVEM

pytest.importorskip("flwr", reason="hierfl[flower] is not installed")

from flwr.app import Array, ArrayRecord, Message, RecordDict
from support.local_grid import LocalGrid

from hierfl.experiments.federate import flower
from hierfl.experiments.federate.flower import FlowerAsk, client
from hierfl.experiments.federate.local_socket import answer_couriers, asked, listening


@contextmanager
def at_their_sockets(sites: Any) -> Iterator[None]:
    """Every site listens, as its own process would."""
    done = threading.Event()
    threads = []
    with ExitStack() as stack:
        for name, site in sites.sites.items():
            listener = stack.enter_context(listening(sites.folder / name))
            answering = threading.Thread(target=answer_couriers, args=(listener, site.answer, done.is_set), daemon=True)
            answering.start()
            threads.append((name, answering))
        try:
            yield
        finally:
            done.set()
            for name, answering in threads:
                threading.Thread(target=nudge, args=(sites.folder / name,), daemon=True).start()
                answering.join(20)
                assert not answering.is_alive()


def nudge(folder: Path) -> None:
    """One more courier, so that a site looks whether it is done; it may have been."""
    with suppress(OSError, EOFError, UserError):
        asked(folder, b"")


def nodes_of(sites: Any) -> dict[int, dict[str, str]]:
    """A node for each site."""
    return {100 + j: {"folder": str(sites.folder / name), "client": name} for j, name in enumerate(sites.sites)}


def registered(sites: Any) -> dict[str, int]:
    """As nodes.toml has it."""
    return {name: 100 + j for j, name in enumerate(sites.sites)}


CASES: list[tuple[type[Method], dict]] = [(PFedVEM, {}), (FedPop, {"final_steps": 12, "final_keep": 4})]


@pytest.mark.parametrize(
    ("cls", "settings", "keys"),
    [
        pytest.param(*case, keys, marks=() if keys and k == 0 else pytest.mark.slow)
        for k, case in enumerate(CASES)
        for keys in (True, False)
    ],
)
def test_flower_carries_the_same_bytes(cls: type[Method], settings: dict, keys: bool, tmp_path: Path) -> None:
    """To the bit; with registered nodes, and with nodes that say who they are."""
    plain = ready(cls, settings, tmp_path / "plain")
    expected = plain.fit()
    sites = ready(cls, settings, tmp_path / "sites")
    grid = LocalGrid(client, nodes_of(sites))
    with at_their_sockets(sites):
        ask = FlowerAsk(grid, list(sites.sites), registered(sites) if keys else None)
        run = sites.fit(ask)
    same(expected, plain, run, sites)


@pytest.mark.cpu(6, "a study with masks, twice; a plain model, twice")
@pytest.mark.parametrize(
    "make", [pytest.param(mixed, id="masks"), pytest.param(model_sites, id="a plain model", marks=pytest.mark.slow)]
)
def test_studies_go_through_flower_as_through_files(make: Callable[..., FileStudy], tmp_path: Path) -> None:
    """Sealed requests to gates; the same bits."""
    plain, file_study = make(tmp_path / "files", rounds=2), make(tmp_path / "flower", rounds=2)
    plain.serve()
    study = Study.read(file_study.study)
    gates = SimpleNamespace(sites=file_study.gates, folder=file_study.folder)
    grid = LocalGrid(client, nodes_of(gates))
    with at_their_sockets(gates):
        serve(
            study, file_study.folder / "server",
            lambda recorded: FlowerAsk(grid, study.clients, registered(gates), 0.0, recorded.waiting),
            file_study.parties.server, progress=False,
        )  # fmt: skip
    expected, actual = (load(folder / "server" / "checkpoint")[0] for folder in (plain.folder, file_study.folder))
    assert all(torch.equal(value, actual[name]) for name, value in expected.items())


def lying(body: bytes) -> Message:
    """An array whose header declares something else than what is there."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": "|u1", "fortran_order": False, "shape": (10**12,)})
    return Array(dtype="uint8", shape=(3,), stype="numpy.ndarray", data=out.getvalue() + body)  # type: ignore[return-value]


def with_array(message: Message, array: Array) -> Message:
    """A reply with this array as its body."""
    return Message(RecordDict({"body": ArrayRecord({"bytes": array})}), reply_to=message)


HOSTILE = {
    "lost": lambda message, reply: None,
    "no body": lambda message, reply: Message(RecordDict(), reply_to=message),
    "floats": lambda message, reply: with_array(message, Array(np.ones(3))),
    "two dimensions": lambda message, reply: with_array(message, Array(np.ones((3, 3), np.uint8))),
    "a lying header": lambda message, reply: with_array(message, lying(b"abc")),
    "pickle": lambda message, reply: with_array(
        message, Array(dtype="object", shape=(1,), stype="numpy.ndarray", data=b"\x93NUMPY\x01\x00v\x00{'descr': '|O'}")
    ),
    "another kind": lambda message, reply: with_array(
        message, Array(dtype="uint8", shape=(1,), stype="other", data=b"x")
    ),
    "garbage": lambda message, reply: with_array(message, Array(np.frombuffer(b"\xff" * 99, np.uint8))),
}


@pytest.fixture(scope="module")
def without_an_answer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Sites]:
    """What plain bytes find where a site's answer is lost in round 2."""
    plain = ready(PFedVEM, {}, tmp_path_factory.mktemp("plain"), participation=1.0)

    def lost(requests: dict[str, bytes]) -> dict[str, bytes]:
        head = header(next(iter(requests.values())))
        answers = plain.ask(requests)
        if head["kind"] == "round" and head["round"] == 2:
            answers.pop("place-01")
        return answers

    return plain.fit(lost), plain


@pytest.mark.parametrize("what", of_all([*HOSTILE], ("lost", "no body", "a lying header", "garbage"), str))
def test_what_is_no_reply_is_no_answer(
    what: str, without_an_answer: tuple[Run, Sites], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A node that sends nonsense in round 2: as if that site's answer had been lost, to the bit; one line says so."""
    expected, plain = without_an_answer
    sites = ready(PFedVEM, {}, tmp_path / "sites", participation=1.0)

    def change(node: int, message: Message, reply: Message) -> Message | None:
        head = header(flower.unpacked(message.content))
        return HOSTILE[what](message, reply) if (node, head["kind"], head["round"]) == (101, "round", 2) else reply

    caplog.clear()
    with at_their_sockets(sites):
        deadline = 2.0 if what == "lost" else 0.0
        run = sites.fit(
            FlowerAsk(LocalGrid(client, nodes_of(sites), change), list(sites.sites), registered(sites), deadline)
        )
    same(expected, plain, run, sites)
    assert len([line for line in caplog.messages if "place-01" in line]) == (1 if what in ("lost", "garbage") else 2)


def test_only_the_roster_is_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A stranger, a double, and a site without a node: nobody else's bytes are taken for a site's."""
    sites = ready(PFedVEM, {}, tmp_path)
    nodes = nodes_of(sites)
    seen: list[int] = []

    def change(node: int, message: Message, reply: Message) -> Message:
        seen.append(node)
        return reply

    strangers = {999: {"folder": str(tmp_path / "place-00"), "client": "other"}, 998: nodes[100]}
    requests = dict.fromkeys(sites.sites, b"x")
    with at_their_sockets(sites):
        grid = LocalGrid(client, {**nodes, **strangers}, change)
        known = registered(sites)
        known.pop("place-03")
        replies = FlowerAsk(grid, list(sites.sites), known, 1.0)(requests)
        assert set(replies) == {"place-00", "place-01", "place-02"}
        assert set(seen) == {100, 101, 102}
        assert "place-03 has no node: hierfl federate register" in caplog.messages
        replies = FlowerAsk(grid, list(sites.sites), None, 0.0)(requests)
        assert set(replies) == set(sites.sites)
    assert len([line for line in caplog.messages if "not one of ours, or there already" in line]) >= 2


def test_a_site_whose_process_is_away_is_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its courier says so; as soon as it is back it answers, and nothing has changed."""
    monkeypatch.setattr(flower, "RETRY_SECONDS", 0.1)
    sites = ready(PFedVEM, {}, tmp_path)
    nodes, request = nodes_of(sites), b"anything"
    grid, stack = LocalGrid(client, nodes), ExitStack()
    tries: list[int] = []

    def counted(node: int, message: Message, reply: Message) -> Message:
        tries.append(node)
        if len(tries) == 3:
            stack.enter_context(at_their_sockets(sites))
        return reply

    grid.change = counted
    with stack:
        assert set(FlowerAsk(grid, ["place-00"], {"place-00": 100})({"place-00": request})) == {"place-00"}
    assert len(tries) == 4
    assert len([line for line in caplog.messages if "place-00 is asked again: error 2" in line]) == 1


def test_a_refusal_ends_what_needs_all_and_is_not_waited_for(tmp_path: Path) -> None:
    """Without a deadline, and though another site's process is away."""
    sites = ready(PFedVEM, {}, tmp_path)
    nodes, done = nodes_of(sites), threading.Event()

    def refuses(request: bytes) -> bytes:
        return encode({"client": "place-00", "error": "no", "refused": "policy"}, {})

    with listening(sites.folder / "place-00") as listener:
        answering = threading.Thread(target=answer_couriers, args=(listener, refuses, done.is_set), daemon=True)
        answering.start()
        ask = FlowerAsk(LocalGrid(client, nodes), list(sites.sites), registered(sites))
        asked = encode({"kind": "prepare", "round": 0}, {})
        assert set(ask(dict.fromkeys(sites.sites, asked))) == {"place-00"}
        assert ask.refusing == {"place-00"}
        done.set()
        # Beside this: a site that is done already answers nobody, until its socket is closed.
        threading.Thread(target=nudge, args=(sites.folder / "place-00",), daemon=True).start()
        answering.join(20)
        assert not answering.is_alive()
    others = {name: site for name, site in sites.sites.items() if name != "place-00"}
    sites.sites = others
    with at_their_sockets(sites):  # place-00 is away for good, and holds nobody up
        asked = encode({"kind": "round", "round": 1}, {})
        assert set(ask(dict.fromkeys(["place-00", *others], asked))) == set(others)


def test_sites_hear_the_end_without_being_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that has left the roster; a node that is away costs a moment alone."""
    monkeypatch.setattr(flower, "LINGER", 1.0)
    sites = ready(PFedVEM, {}, tmp_path)
    nodes, seen = nodes_of(sites), list[tuple[int, object]]()

    def change(node: int, message: Message, reply: Message) -> Message | None:
        seen.append((node, header(flower.unpacked(message.content))["kind"]))
        return None if node == 101 else reply

    known = registered(sites)
    nodes.pop(known["place-02"])
    ask = FlowerAsk(LocalGrid(client, nodes, change), ["place-01"], known)
    begun = time.monotonic()
    with at_their_sockets(sites):
        ask.leave(endings(["place-00", "place-01", "place-02"], sites.sites["place-00"].handshake, "why", done=True))
    assert sorted(seen) == [(100, "ended"), (101, "ended")]
    assert time.monotonic() - begun < 20
