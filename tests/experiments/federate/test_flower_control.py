"""flwr's commands: a SuperLink that has just begun, and a server that is followed from the outside."""

from __future__ import annotations

import signal
import socket
import threading
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.parties import Parties
from support.studies import formula_study, patients, write_tables

from hierfl.errors import UserError
from hierfl.experiments.federate import flower_control, flower_server
from hierfl.experiments.federate.flower_control import Control, NotThere
from hierfl.experiments.federate.flower_server import Terminated, serve_in_superlink
from hierfl.experiments.federate.nodes import read_nodes, write_nodes
from hierfl.experiments.federate.study import Study
from hierfl.experiments.federate.work import node_command
from hierfl.inference.engines.remote.keys import Identity

pytest.importorskip("flwr", reason="hierfl[flower] is not installed")


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Control:
    """Of a port at which nothing listens yet."""
    monkeypatch.setattr(flower_control, "PAUSE", 0.02)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return Control(tmp_path / "study.toml", f"127.0.0.1:{free.getsockname()[1]}", None)


def test_a_superlink_that_has_just_begun_is_waited_for(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First nothing listens, then it does and is not ready; no command is spent on a closed port."""
    (tmp_path / "north.pub").touch()
    tries: list[tuple[str, ...]] = []
    listener = socket.socket()

    def flwr(*arguments: str) -> dict[str, Any]:
        tries.append(arguments)
        if len(tries) < 3:
            raise NotThere("flwr supernode has failed: Connection to the SuperLink is unavailable")
        return {"node-id": "7"}

    def begin() -> None:
        listener.bind(("127.0.0.1", int(control.superlink.rpartition(":")[2])))
        listener.listen()

    monkeypatch.setattr(control, "_flwr_once", flwr)
    threading.Timer(0.2, begin).start()
    assert control.register("north", tmp_path / "north.pub") == 7
    assert len(tries) == 3
    listener.close()


def test_a_superlink_that_never_comes_is_one_line(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "north.pub").touch()
    monkeypatch.setattr(flower_control, "BEGINNING", 0.1)

    def away(*arguments: str) -> dict[str, Any]:
        raise NotThere("flwr supernode has failed: Connection refused")

    monkeypatch.setattr(control, "_flwr_once", away)
    with pytest.raises(UserError, match=rf"no SuperLink answers at {control.superlink} \(tried for 0 s\): start"):
        control.register("north", tmp_path / "north.pub")


def test_a_node_that_the_superlink_has_forgotten_is_removed(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was started again; other failures keep the node."""
    write_nodes(control.study, {"north": 7, "south": 8})

    def fails(words: str) -> None:
        def away(*arguments: str, **more: Any) -> dict[str, Any]:
            raise UserError(words)

        monkeypatch.setattr(control, "_flwr", away)

    fails("flwr supernode has failed: permission denied")
    with pytest.raises(UserError, match="permission"):
        control.unregister("north")
    fails("flwr supernode has failed: [code: 24] Node ID not found for account.")
    control.unregister("north")
    assert read_nodes(control.study) == {"south": 8}


def test_a_card_is_no_key_of_a_node(control: Control, tmp_path: Path) -> None:
    (tmp_path / "north.pub").write_text(Identity.make("north").card.text)
    with pytest.raises(UserError, match=r"north\.pub is the site's card, .*node\.pub"):
        control.register("north", tmp_path / "north.pub")


def test_the_app_is_told_all_that_was_said(control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_flwr", lambda *given, **more: {"run-id": 7})
    more = {"resume": True, "restart": True, "deadline": 3.0, "trust_code": True}
    assert control.start(tmp_path / "server", tmp_path / "home", **more) == "7"  # type: ignore[arg-type]
    settings = tomllib.loads((control.home / "run.toml").read_text())
    assert settings.items() >= more.items()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_ends_the_follower_ends_the_server(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """And the follower says beforehand how that is done."""
    own = write_tables(patients(3), tmp_path / "data")
    parties = Parties.of(own)
    parties.put_into(path := formula_study(tmp_path, own))
    parties.server.save(tmp_path / "coordinator")
    study = Study.read(path)
    stopped: list[str] = []
    lines: list[str] = []

    class Started:
        home = tmp_path / ".flower"

        def start(self, *given: Any, **more: Any) -> str:
            return "42"

        def stop(self, run: str) -> None:
            stopped.append(run)

    # To this thread: of a signal to the process another thread may be told, and this one would wait for ever.
    monkeypatch.setattr(flower_server, "_followed", lambda *given: signal.raise_signal(number))
    before = signal.getsignal(signal.SIGTERM)
    request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it
    more: Any = {"resume": False, "restart": False, "deadline": 0.0, "trust_code": False, "say": lines.append}
    with pytest.raises((Terminated, KeyboardInterrupt)):
        serve_in_superlink(study, tmp_path / "server", Started(), tmp_path / "coordinator", **more)  # type: ignore[arg-type]
    assert stopped == ["42"]
    assert signal.getsignal(signal.SIGTERM) is before
    assert any("flwr stop 42 hierfl" in line and "SIGTERM" in line for line in lines)


def test_every_node_has_a_port_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "node.key").touch()
    ports = {node_command(tmp_path).partition("--port ")[2].split()[0] for _ in range(3)}
    assert "9094" not in ports
    assert f"--auth-supernode-private-key {tmp_path}/node.key" in node_command(tmp_path)
