"""No sum is opened of fewer messages than hide one, and none of other sites than its kind was asked of before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.masked_sites import Masked, altered, numbers, plain

from hierfl.inference.engines.remote.masks.layout import Layout
from hierfl.inference.engines.remote.masks.parts import Mode
from hierfl.inference.engines.remote.wire import decode, header

FIVE = numbers(5, size=2)
NAMES = list(FIVE)
MODES: list[Mode] = ["whole", "shares"]


def refusing(masked: Masked, *names: str) -> None:
    """Messages of these fail a check of their own."""
    masked.flags = {name: {"reported": False, "refused": True} for name in names}


def kinds(masked: Masked) -> set[str]:
    """What sites were asked."""
    return {header(request)["kind"] for _, request, _ in masked.transcript}


@pytest.mark.parametrize(
    ("kind", "about"),
    [("scores", {"split": "test", "draws": [0]}), ("calibration", {"question": {"about": "test", "powers": [1.0]}})],
)
@pytest.mark.parametrize("mode", MODES)
def test_a_server_does_not_choose_anew_who_adds(mode: Mode, kind: str, about: dict[str, Any], tmp_path: Path) -> None:
    """The difference of two sums of the same values, over four sites and over five, would be one site's message."""
    masked = Masked(tmp_path, FIVE, mode=mode)
    assert masked.sum(1, kind, **about) is not None
    assert masked.sum(1, kind, **about, adding=NAMES[:4]) is None
    other = {"draws": [0, 5]} if kind == "scores" else {"final": True}
    assert masked.sum(1, kind, **{**about, **other}, adding=NAMES[1:]) is None
    assert masked.sum(1, kind, **about) is not None
    masked.restart()
    # sums of all are of the same sites in the whole study: also of values that are nearly equal
    close = masked.sum(1, kind, **about, adding=NAMES[:4], values=1.0 + 1e-7)
    assert (close is None) == (mode == "whole" or kind == "calibration")


@pytest.mark.parametrize("mode", MODES)
def test_few_of_those_who_add_open_nothing(mode: Mode, tmp_path: Path) -> None:
    """Four of five are there, and two of these are to add something."""
    masked = Masked(tmp_path, FIVE, mode=mode)
    assert masked.sum(1, "scores", split="test", adding=NAMES[3:]) is None
    masked.away = {"scores": NAMES[4:]}
    assert masked.sum(2, "scores", split="test", adding=NAMES[2:]) is None
    assert not {"sign", "open"} & kinds(masked)


def test_in_a_sum_of_all_a_message_that_is_not_there_is_noise(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whether one refuses or all but one do: of numbers the server has nothing, and it hears how many."""
    for lost in (1, 4):
        masked = Masked(tmp_path / str(lost), {name: {"x": torch.ones(200).double()} for name in NAMES})
        refusing(masked, *NAMES[:lost])
        total = masked.sum()
        assert total is not None
        assert (total.opened, total.reported, total.refused) == (False, 5 - lost, lost)
        assert not total.sums["x"].any()
        layout = Layout(masked.form, 5)
        words = layout.words.added(decode(answer)[1]["masked"].numpy().view(np.uint64) for _, answer in masked.rows())
        assert words[:3].tolist() == [5 - lost, 0, lost]
        counts = np.bincount(words[3:].view(np.uint8), minlength=256)
        assert abs(float(((counts - counts.mean()) ** 2 / counts.mean()).sum()) - 255) < 5 * np.sqrt(2 * 255)
        assert f"{5 - lost} of 5 messages are there" in caplog.text
        again = {name: masked.sites[name].answer(q) for name, q, _ in masked.transcript if header(q)["kind"] == "round"}
        assert again == dict(masked.rows())  # the same noise
        masked.flags = {}
        whole = masked.sum(2)
        assert whole is not None
        assert whole.opened


@pytest.mark.parametrize(("lost", "quorum", "opens"), [(2, 3, True), (3, 3, False), (4, 3, False), (2, 4, False)])
def test_sums_over_survivors_need_three_messages_and_the_quorum(
    lost: int, quorum: int, opens: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Sites say so to each other before they sign; where too few messages are there no share is asked for."""
    masked = Masked(tmp_path, FIVE, mode="shares", quorum=quorum)
    refusing(masked, *NAMES[:lost])
    total = masked.sum()
    assert total is not None
    assert (total.opened, total.reported, total.clients) == (opens, 5 - lost, list(range(5)))
    assert ("open" in kinds(masked)) == opens
    if opens:
        assert torch.allclose(total.sums["x"], plain(FIVE, NAMES[lost:])["x"], rtol=1e-14)
    else:
        assert total.refused == lost
        assert f"{5 - lost} of 5 messages are there" in caplog.text
        assert all("signature" not in header(answer) for _, answer in masked.rows("sign"))


def test_what_sites_say_to_each_other_cannot_be_made_up(tmp_path: Path) -> None:
    """Four messages of five are not there: neither another question's packets nor another site's say that they are."""
    masked = Masked(tmp_path, FIVE, mode="shares")
    assert masked.sum(1) is not None
    earlier = next(q for name, q, _ in masked.transcript if name == NAMES[0] and header(q)["kind"] == "sign")
    refusing(masked, *NAMES[1:])
    masked.sum(2)
    sign = next(q for name, q, _ in reversed(masked.transcript) if name == NAMES[0] and header(q)["kind"] == "sign")
    theirs = next(q for name, q, _ in reversed(masked.transcript) if name == NAMES[1] and header(q)["kind"] == "sign")
    site = masked.sites[NAMES[0]]
    for made_up in (header(earlier)["masks"]["told"], header(theirs)["masks"]["told"]):
        assert header(site.answer(altered(sign, told=made_up)))["refused"] == "answered"
    for made_up in (None, "", "AAAA", 7):
        assert "signature" not in header(site.answer(altered(sign, told=made_up)))
    fewer = {**header(sign)["masks"]["list"], "survivors": [NAMES[0], *NAMES[2:]]}
    assert "signature" not in header(site.answer(altered(sign, list=fewer)))
