"""Troubles that pass: one line when they begin, one when they are over, and pauses that grow between two tries."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hierfl import troubles
from hierfl.troubles import Troubles


def test_a_trouble_is_said_twice(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    monkeypatch.setattr(troubles.time, "monotonic", lambda: now[0])
    tracker, pauses = Troubles(), []
    for _ in range(12):
        with tracker.tried("the exchange"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a\x1bb")
        begun = now[0]
        while not tracker.due("the exchange"):
            now[0] += 0.0625
        pauses.append(now[0] - begun)
    assert pauses[:5] == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2], abs=0.1)
    assert pauses[-1] == pytest.approx(30.0, abs=0.1)
    tracker.hurry()
    assert tracker.due("the exchange")
    for _ in range(2):
        with tracker.tried("the exchange"):
            pass
    assert caplog.messages == [
        r"the exchange: No space left on device: a\x1bb; it is tried again until it can be used",
        "the exchange: it can be used again",
    ]


def test_what_is_no_trouble_of_the_system_goes_on(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Troubles().tried("anything"):
        raise ZeroDivisionError
