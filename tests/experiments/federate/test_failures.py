"""Disks, mounts, clocks, halves, copies, links, versions, refusals, kills: nothing hangs, and nothing is lost."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.failing import HANGS, also, away, broken, fails, quickly, study_in, wait_for, working
from support.studies import FileStudy

from hierfl.inference.engines.remote import site_state
from hierfl.inference.run import checkpoint
from hierfl.inference.run.checkpoint import load


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quickly(monkeypatch)


def numbers(file_study: FileStudy) -> dict[str, torch.Tensor]:
    """What the server has found."""
    return load(file_study.folder / "server" / "checkpoint")[0]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The same study where nothing goes wrong."""
    file_study = study_in(tmp_path_factory.mktemp("plain"))
    file_study.serve()
    return numbers(file_study)


def requests_at(path: Path, name: str) -> bool:
    return path.name == "requests" and name.endswith(".request")


def replies_at(path: Path, name: str) -> bool:
    return path.name == "replies" and name.endswith(".reply")


def full_disk_on_a_reply(patch: pytest.MonkeyPatch, file_study: FileStudy) -> None:
    broken(patch, "write", replies_at, errno.ENOSPC)


def full_disk_on_a_request(patch: pytest.MonkeyPatch, file_study: FileStudy) -> None:
    broken(patch, "write", requests_at, errno.ENOSPC)


def full_disk_of_a_site(patch: pytest.MonkeyPatch, file_study: FileStudy) -> None:
    whole, fail = site_state.write_whole, fails(errno.ENOSPC)
    patch.setattr(site_state, "write_whole", lambda *given, **more: (fail(), whole(*given, **more))[1])


def read_only_exchange(patch: pytest.MonkeyPatch, file_study: FileStudy) -> None:
    broken(patch, "write", lambda path, name: True, errno.EROFS, 9)


def exchange_of_others(patch: pytest.MonkeyPatch, file_study: FileStudy) -> None:
    broken(patch, "names", lambda path, name: True, errno.EACCES, 9)


def stale_request(patch: pytest.MonkeyPatch, file_study: FileStudy) -> None:
    broken(patch, "read", requests_at, errno.ESTALE, 6)


def stale_reply(patch: pytest.MonkeyPatch, file_study: FileStudy) -> None:
    broken(patch, "read", replies_at, errno.EIO, 6)


def _mount(file_study: FileStudy, *, empty: bool) -> None:
    def vanish() -> None:
        wait_for(lambda: list((file_study.folder / "exchange").glob("h00/requests/000001-*")))
        away(file_study.folder / "exchange", 0.3, empty=empty)

    threading.Thread(target=vanish, daemon=True).start()


def vanished_mount(patch: pytest.MonkeyPatch, file_study: FileStudy) -> None:
    _mount(file_study, empty=False)


def empty_mount_point(patch: pytest.MonkeyPatch, file_study: FileStudy) -> None:
    _mount(file_study, empty=True)


def clock_jumps(patch: pytest.MonkeyPatch, file_study: FileStudy) -> None:
    jumps, now = iter(range(10**6)), time.time
    patch.setattr(time, "time", lambda: now() + (-1) ** next(jumps) * 86_400)
    also(patch, lambda folder, name, data: os.utime(folder.path / name, (now() + 10**7, now() + 10**7)))


def _halves(patch: pytest.MonkeyPatch, which: Callable[[Path, str], bool]) -> None:
    def half(folder: Any, name: str, data: bytes) -> None:
        if which(folder.path, name):
            (folder.path / name).write_bytes(data[: len(data) // 2])
            threading.Timer(0.1, (folder.path / name).write_bytes, (data,)).start()

    also(patch, half)


def half_copied_requests(patch: pytest.MonkeyPatch, file_study: FileStudy) -> None:
    _halves(patch, requests_at)


def half_copied_replies(patch: pytest.MonkeyPatch, file_study: FileStudy) -> None:
    _halves(patch, replies_at)


def conflicted_copies(patch: pytest.MonkeyPatch, file_study: FileStudy) -> None:
    def copy(folder: Any, name: str, data: bytes) -> None:
        stem, dot, suffix = name.rpartition(".")
        (folder.path / f"{stem} (conflicted copy 2026-11-27){dot}{suffix}").write_bytes(data)

    also(patch, copy)


def vanished_requests(patch: pytest.MonkeyPatch, file_study: FileStudy) -> None:
    first = set[str]()

    def take(folder: Any, name: str, data: bytes) -> None:
        if requests_at(folder.path, name) and name not in first and not first.add(name):
            (folder.path / name).unlink()

    also(patch, take)


def foreign_files(patch: pytest.MonkeyPatch, file_study: FileStudy) -> None:
    """Also a name with escapes, a request of another study under its own name, and links."""
    other = study_in(file_study.folder / "other")
    other.serve(lambda names: other.answers(names) if names else None)
    at = file_study.folder / "exchange" / "h00" / "requests"
    at.mkdir(parents=True)
    (finish,) = (file_study.folder / "other" / "exchange" / "h00" / "requests").iterdir()
    (at / finish.name).write_bytes(finish.read_bytes())
    (at / "\x1b[8mhidden.request").write_bytes(b"\xff" * 100)
    (at / "photo.jpg").write_bytes(bytes(100))
    (at / "000001-round-0123456789abcdef.request").symlink_to(file_study.files["h00"])


@pytest.mark.parametrize(
    "fault",
    [
        full_disk_on_a_reply, half_copied_replies,
        *(
            pytest.param(fault, marks=pytest.mark.slow)
            for fault in (
                full_disk_on_a_request, full_disk_of_a_site, read_only_exchange, exchange_of_others, stale_request,
                stale_reply, empty_mount_point, clock_jumps, half_copied_requests, vanished_requests, foreign_files,
                vanished_mount, conflicted_copies,
            )
        ),
    ],
)  # fmt: skip
def test_the_same_numbers(
    fault: Callable[[pytest.MonkeyPatch, FileStudy], None], plain: dict[str, torch.Tensor], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """A study without a deadline comes to its end with the same bits, and every site hears it."""
    file_study = study_in(tmp_path)
    secret = file_study.files["h00"].read_bytes()
    fault(monkeypatch, file_study)
    begun = time.monotonic()
    with working(file_study) as workers:
        file_study.serve(lambda names: None)
        wait_for(lambda: all(worker.ended for worker in workers.values()))
    assert time.monotonic() - begun < HANGS
    state = numbers(file_study)
    assert state.keys() == plain.keys()
    assert all(torch.equal(value, plain[name]) for name, value in state.items())
    # one line when a trouble begins, and one when it is over: not thirty in a second
    begins = [line for line in caplog.messages if "it is tried again" in line]
    assert len(begins) == len([line for line in caplog.messages if "it can be used again" in line])
    alone = [line for line in caplog.messages if "is left alone" in line]
    assert len(alone) == len(set(alone))
    assert not [line for line in caplog.messages if "\x1b" in line]
    if fault is conflicted_copies:
        assert alone
        assert all(len(worker.answered) == len(set(worker.answered)) for worker in workers.values())
    if fault is foreign_files:
        assert file_study.files["h00"].read_bytes() == secret
        assert [line for line in alone if line.startswith(r"\x1b[8mhidden.request")]


def test_a_server_whose_disk_is_full_goes_on_and_its_sites_wait(
    plain: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file_study = study_in(tmp_path)
    whole, fail = checkpoint.write_whole, fails(errno.ENOSPC, 1)
    monkeypatch.setattr(checkpoint, "write_whole", lambda *given, **more: (fail(), whole(*given, **more))[1])
    with working(file_study) as workers:
        with pytest.raises(OSError, match="No space left"):
            file_study.serve(lambda names: None)
        wait_for(lambda: sum("may be resumed; this site waits" in line for line in caplog.messages) == 3)
        assert not any(worker.ended for worker in workers.values())
        file_study.serve(lambda names: None, resume=True)
        wait_for(lambda: all(worker.ended for worker in workers.values()))
    assert all(torch.equal(value, plain[name]) for name, value in numbers(file_study).items())


def test_kills_in_between(plain: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """The server in round 2, and a site that begins again from its folder."""
    file_study = study_in(tmp_path)

    def killed(names: list[str]) -> None:
        if list((tmp_path / "exchange" / "h01" / "requests").glob("000002-round-*")):
            raise KeyboardInterrupt

    with working(file_study), pytest.raises(KeyboardInterrupt):
        file_study.serve(killed)
    file_study.restart("h01")
    with working(file_study) as workers:
        file_study.serve(lambda names: None, resume=True)
        wait_for(lambda: all(worker.ended for worker in workers.values()))
    assert all(torch.equal(value, plain[name]) for name, value in numbers(file_study).items())
