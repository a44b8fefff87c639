"""Whatever moment a site or its server is killed at, what is said goes on with the same bits."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from support.masked_sites import Masked, Memory, numbers, plain

from hierfl import files
from hierfl.errors import UserError
from hierfl.inference.engines.remote.masks.claims import FileClaims
from hierfl.inference.engines.remote.masks.parts import Mode
from hierfl.inference.engines.remote.refusals import Refused
from hierfl.inference.engines.remote.wire import header

FOUR = numbers(4)
MODES: list[Mode] = ["whole", "shares"]


class Killed(BaseException):
    """No error that anything handles."""


@contextmanager
def killed(number: int, monkeypatch: pytest.MonkeyPatch, within: str) -> Iterator[list[int]]:
    """Ends at the so-many-th time that something is brought to the disk, before or after it is there.

    Args:
        number: even before, odd after.
        monkeypatch: of the test.
        within: part of the files' paths.
    """
    count, replace, sync = [0], os.replace, os.fsync

    def reached(path: str) -> bool:
        count[0] += within in path
        return within in path and count[0] == number // 2 + 1

    def replaced(source: Path, target: Path) -> None:
        ends = reached(str(target))
        if ends and number % 2 == 0:
            raise Killed
        replace(source, target)
        if ends:
            raise Killed

    def synced(handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        ends = path.endswith(".jsonl") and reached(path)
        if ends and number % 2 == 0:  # half a line is there
            os.ftruncate(handle, os.fstat(handle).st_size - 5)
            raise Killed
        sync(handle)
        if ends:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "replace", replaced)
        patched.setattr(files.os, "fsync", synced)
        yield count


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["keys", "shares", "round", "sign", "open"])
def test_a_site_killed_at_any_write_answers_the_same_bits(
    mode: Mode, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compared with is a copy of the site that goes on undisturbed, with the same secrets."""
    masked = Masked(tmp_path, FOUR, mode=mode)
    caught: dict[str, bytes] = {}

    def catch(name: str, request: bytes) -> bytes:
        if name == "s001" and header(request)["kind"] == kind and not caught:
            caught["request"] = request
            if (tmp_path / name).is_dir():
                shutil.copytree(tmp_path / name, tmp_path / "copy")
        return request

    masked.change = catch
    assert masked.sum() is not None
    if mode == "whole" and kind in ("shares", "sign", "open"):
        assert not caught
        return
    expected = next(a for _, q, a in masked.transcript if q == caught["request"])
    writes = 0
    for number in itertools.count():
        shutil.rmtree(tmp_path / "s001")
        if (tmp_path / "copy").is_dir():
            shutil.copytree(tmp_path / "copy", tmp_path / "s001")
        site = masked.site("s001")
        ended = False
        with killed(number, monkeypatch, str(tmp_path / "s001")):
            try:
                first = site.answer(caught["request"])
            except Killed:
                ended = True
        again = masked.site("s001").answer(caught["request"])
        if kind == "keys":  # new ones, made once: what was said is said again
            assert masked.site("s001").answer(caught["request"]) == again
            assert ended or first == again
        else:
            assert again == expected
        if not ended:
            break
        writes += 1
    assert writes == {"keys": 2, "shares": 2, "round": 8, "sign": 4, "open": 4}[kind]


@pytest.mark.parametrize("mode", MODES)
def test_a_server_killed_at_any_write_goes_on_with_the_same_bits(
    mode: Mode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = plain(FOUR)["x"]
    for number in itertools.count():
        masked = Masked(tmp_path / str(number), FOUR, mode=mode)
        ended = False
        with killed(number, monkeypatch, f"{tmp_path}/{number}/server"):
            try:
                total = masked.sum()
            except Killed:
                ended = True
        if ended:
            masked.restart()
            total = masked.sum()
        assert total is not None
        assert torch.allclose(total.sums["x"], expected, rtol=1e-14)
        rows = {name: {answer for who, answer in masked.rows() if who == name} for name in FOUR}
        assert all(len(answers) == 1 for answers in rows.values())
        if not ended:
            break
    assert number == {"whole": 6, "shares": 16}[mode]  # twice as many as there are writes


@pytest.mark.parametrize("kind", ["keys", "shares", "round", "sign", "open"])
@pytest.mark.parametrize("lost", ["", "s002"])
def test_a_server_killed_as_it_waits_opens_the_same_sum(kind: str, lost: str, tmp_path: Path) -> None:
    """Also where a site answers late by then, or is away: who has survived is on the disk."""
    masked = Masked(tmp_path, FOUR, mode="shares")
    masked.away = {"round": [lost]}
    real = masked.ask

    def ends(requests: dict[str, bytes]) -> dict[str, bytes]:
        answers = real(requests)
        if header(next(iter(requests.values())))["kind"] == kind:
            raise Killed
        return answers

    masked.questions.ask = ends
    with pytest.raises(Killed):
        masked.sum()
    masked.away = {"round": list(FOUR)} if kind in ("sign", "open") else masked.away
    masked.restart()
    total = masked.sum()
    assert total is not None
    names = [name for name in FOUR if name != lost]
    assert total.clients == [index for index, name in enumerate(FOUR) if name in names]
    assert torch.allclose(total.sums["x"], plain(FOUR, names)["x"], rtol=1e-14)


def test_a_sum_that_was_not_opened_is_opened_once_sites_are_back(tmp_path: Path) -> None:
    masked = Masked(tmp_path, FOUR, mode="shares")
    masked.away = {"open": ["s000", "s001"], "round": ["s003"]}
    assert masked.sum() is None
    masked.away = {}
    total = masked.sum()
    assert total is not None
    assert total.clients == [0, 1, 2]


def test_claims_are_kept(tmp_path: Path) -> None:
    path, (digest, other) = tmp_path / "a" / "claims.jsonl", ("1" * 64, "2" * 64)
    for made in (FileClaims(path), FileClaims(path), Memory()):
        made.claim("mask a", digest)
        made.claim("mask a", digest)
        made.claim("mask b", other)
        with pytest.raises(Refused, match="another answer was given before") as refused:
            made.claim("mask a", other)
        assert refused.value.refused == "answered"
    assert path.read_text().count("\n") == 2
    assert path.stat().st_mode & 0o077 == 0
    path.write_text(path.read_text() + '["mask c", "3')  # of a killed process
    kept = FileClaims(path)
    kept.claim("mask c", other)
    assert FileClaims(path)._held == {"mask a": digest, "mask b": other, "mask c": other}
    path.write_text("nothing of ours\n")
    with pytest.raises(UserError, match="damaged"):
        FileClaims(path)
