"""`hierfl federate doctor`: each line says what to do, and a failure is an exit status."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.commands import Call
from support.studies import formula_study, patients, write_tables

from hierfl.experiments.federate import doctor
from hierfl.experiments.federate.doctor import Finding, examine
from hierfl.inference.engines.remote.keys import Identity


def findings(*given: object, **more: object) -> dict[str, Finding]:
    """By what was looked at."""
    return {finding.what: finding for finding in examine(*given, **more)}  # type: ignore[arg-type]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    Identity.make("north").save(tmp_path / "at-north")
    return tmp_path / "at-north"


def test_a_place_that_is_ready(home: Path, tmp_path: Path, hierfl: Call) -> None:
    (tmp_path / "exchange").mkdir()
    study = formula_study(tmp_path, write_tables(patients(3), tmp_path / "data"))
    code, text, _ = hierfl("federate", "doctor", home, "--exchange", tmp_path / "exchange", "--study", study)
    assert code == 0, text
    assert "fail" not in text
    for what in ("python", "torch", "cryptography", "site.key: 0600", "rename", "GB are free", "clock", "3 sites"):
        assert what in text
    assert not list((tmp_path / "exchange").iterdir())


def test_what_fails_says_what_to_do(home: Path, tmp_path: Path, hierfl: Call) -> None:
    os.chmod(home / "site.key", 0o644)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code, text, _ = hierfl(
        "federate", "doctor", home, "--exchange", tmp_path / "\x1b[8mnone", "--superlink", f"127.0.0.1:{port}",
        "--study", tmp_path / "study.toml",
    )  # fmt: skip
    assert code == 1
    assert "\x1b" not in text
    for line in (
        "fail  site.key: 0644: others may read it: chmod 600", "is no folder: make it, or mount it",
        f"nothing answers at 127.0.0.1:{port} (Connection refused): start flower-superlink", "fail  study: no file",
    ):  # fmt: skip
        assert line in text
    assert "clock" not in text  # a folder that is not there is one line


def test_disks_clocks_links_and_ports(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = tmp_path / "exchange"
    (exchange / "north" / "requests").mkdir(parents=True)
    (exchange / "south").symlink_to(tmp_path)
    at = exchange / "north" / "requests" / "x.request"
    at.touch()
    os.utime(at, (4e9, 4e9))
    os.chmod(exchange, 0o777)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=10**6))
    seen = findings(home, exchange)
    assert (seen["exchange disk"].level, seen["exchange mode"].level, seen["clock"].level) == ("fail", "warn", "warn")
    assert "is a link, which is not followed" in seen["exchange"].words
    monkeypatch.setattr(doctor.time, "time", lambda: 0.0)
    assert findings(None, exchange)["clock"].level == "fail"
    monkeypatch.setattr(doctor.os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
    seen = findings(home, exchange)
    assert seen["exchange writing"].words.startswith("Read-only file system")
    assert seen["home writing"].level == "fail"
    assert "has no site.key" in findings(exchange)["keys"].words
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(doctor, "FLOWER_PORTS", {port: "the SuperLink's"})
        assert findings(superlink=f"127.0.0.1:{port}")["SuperLink"].level == "ok"
    assert findings(superlink="nowhere")["SuperLink"].level == "fail"


def test_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PACKAGES", {"hierfl-none": True, "hierfl-nothing": False})
    seen = findings()
    assert (seen["hierfl-none"].level, seen["hierfl-nothing"].level) == ("fail", "ok")
