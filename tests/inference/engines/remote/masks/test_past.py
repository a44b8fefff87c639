"""Sites whose messages depend on different things that a server has said before have masks that do not cancel."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.masked_sites import Masked, altered, numbers

from hierfl.inference.engines.remote.masks.layout import Layout
from hierfl.inference.engines.remote.masks.parts import Mode
from hierfl.inference.engines.remote.own_part import OwnPart
from hierfl.inference.engines.remote.wire import Unreadable, decode, encode, header
from hierfl.inference.options import Options

FIVE = numbers(5, size=2)
NAMES = list(FIVE)
MODES: list[Mode] = ["whole", "shares"]
VICTIM = NAMES[1]


def counted(masked: Masked) -> int:
    """How many messages the sum of the last round's answers says that it has: far too many where masks are left."""
    rows = dict(masked.rows())
    words = Layout(masked.form, 5).words.added(
        decode(row)[1]["masked"].numpy().view(np.uint64) for row in rows.values()
    )
    return int(words[0])


@pytest.mark.parametrize("kind", ["round", "scores", "sums", "calibration"])
@pytest.mark.parametrize("mode", MODES)
def test_sites_that_began_with_other_sums_than_one_have_no_sum_with_it(mode: Mode, kind: str, tmp_path: Path) -> None:
    masked = Masked(tmp_path, FIVE, mode=mode)
    for name, site in masked.sites.items():
        site.inner.basis = ("b" if name == VICTIM else "a") * 64  # type: ignore[misc]
    masked.server.basis = "a" * 64
    total = masked.sum(1, kind)
    assert total is None if mode == "whole" or kind not in ("round", "scores") else 1 not in total.clients
    assert {header(answer).get("refused") for name, answer in masked.rows(kind) if name == VICTIM} == {"answered"}


def test_sums_of_sites_that_are_told_what_each_began_with_are_noise(tmp_path: Path) -> None:
    masked = Masked(tmp_path, FIVE)
    for name, site in masked.sites.items():
        site.inner.basis = ("b" if name == VICTIM else "a") * 64  # type: ignore[misc]
    masked.change = lambda name, plain: (
        altered(plain, basis=masked.sites[name].inner.basis) if header(plain)["kind"] == "round" else plain
    )
    assert masked.sum(1) is None
    assert all("masked" in header(answer) for _, answer in masked.rows())
    assert counted(masked) > 5


def another(masked: Masked, number: int) -> None:
    """The victim is asked another round of this number than the others."""

    def change(name: str, plain: bytes) -> bytes:
        head, tensors = decode(plain)
        asked = head["kind"] == "round" and head["round"] == number and name == VICTIM
        return encode(head, {"shared": tensors["shared"] + 1.0}) if asked else plain

    masked.change = change


@pytest.mark.parametrize("mode", MODES)
def test_a_site_that_has_answered_another_round_is_in_no_later_sum(mode: Mode, tmp_path: Path) -> None:
    """The first round does not open; what the sites keep of it is no longer alike."""
    masked = Masked(tmp_path, FIVE, mode=mode)
    another(masked, 1)
    masked.sum(1)
    for number, kind in ((1, "scores"), (2, "round"), (3, "round")):
        total = masked.sum(number, kind)
        assert total is None if mode == "whole" else total is None or 1 not in total.clients
        replies = [header(answer) for name, answer in masked.rows(kind) if name == VICTIM]
        assert replies[-1].get("refused") == "answered"
    masked.sites[VICTIM] = masked.site(VICTIM)  # it is on the disk
    masked.sum(4)
    assert header(masked.rows()[-1][1] if masked.rows()[-1][0] == VICTIM else dict(masked.rows())[VICTIM])["refused"]


def test_a_site_to_which_a_server_says_what_it_has_answered_has_other_masks(tmp_path: Path) -> None:
    masked = Masked(tmp_path, FIVE)
    another(masked, 1)
    masked.sum(1)
    mine = masked.sites[VICTIM].past.rounds[1]
    masked.change = lambda name, plain: (
        altered(plain, past=mine) if name == VICTIM and header(plain)["kind"] == "round" else plain
    )
    masked.sum(2)
    assert all("masked" in header(answer) for _, answer in masked.rows()[-5:])
    assert counted(masked) > 5
    for wrong in (None, "", f"{mine} {mine}", 7):
        request = next(q for name, q, _ in reversed(masked.transcript) if name == VICTIM)
        assert "masked" not in header(masked.sites[VICTIM].answer(altered(request, past=wrong)))


def test_a_site_that_was_away_takes_part_again(tmp_path: Path) -> None:
    """It has nothing to compare a round with that it has not answered."""
    masked = Masked(tmp_path, FIVE, mode="shares")
    assert masked.sum(1) is not None
    masked.away = {"round": [VICTIM]}
    total = masked.sum(2)
    assert total is not None
    assert 1 not in total.clients
    masked.away = {}
    masked.restart()
    total = masked.sum(3)
    assert total is not None
    assert total.clients == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("mode", MODES)
def test_who_reports_is_who_adds_and_trains(mode: Mode, tmp_path: Path) -> None:
    """Four messages of five are not there, and nothing opens."""
    masked = Masked(tmp_path, FIVE, mode=mode)
    masked.flags = {name: {"reported": False, "diverged": True} for name in NAMES[1:]}
    total = masked.sum(1)
    assert total is not None
    assert (total.opened, total.reported) == (False, 1)
    assert masked.sum(2, training=NAMES[:2]) is None


@pytest.mark.parametrize(("training", "ok"), [(None, True), ("planned", True), ("one", False), ("one more", False)])
@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_who_trains_is_who_reports_or_everybody(participation: float, training: str | None, ok: bool) -> None:
    roster = [f"h{j:02d}" for j in range(10)]
    part = OwnPart.__new__(OwnPart)
    part.client, part.roster, part.clients = "h00", roster, 10
    part.expected = SimpleNamespace(options=Options(masked=True, participation=participation))  # type: ignore[assignment]
    planned = sorted(part._planned(1))
    head: dict[str, Any] = {"kind": "round", "round": 1, "adding": planned}
    absent = [name for name in roster if name not in planned]
    names = {"planned": planned, "one": planned[:1], "one more": [*planned, *(absent[:1] or ["h99"])]}
    head |= {"training": names[training]} if training else {}
    if ok:
        assert part.adds(head) == ("h00" in planned)
        return
    with pytest.raises(Unreadable, match="others are to train"):
        part.adds(head)
    with pytest.raises(Unreadable, match="others are to train"):
        part.adds({**head, "adding": []})


@pytest.mark.parametrize("diverged", [True, False])
def test_with_noise_on_a_sum_every_answer_has_its_share(diverged: bool) -> None:
    part = OwnPart.__new__(OwnPart)
    part.expected = SimpleNamespace(options=Options(masked=True, dp="client", epsilon=1.0))  # type: ignore[assignment]
    noise = {"w|w": torch.full((3,), 1e30)}
    assert part.message({}, noise, diverged=diverged, reports=True) == (noise, [1, 0, 0])
