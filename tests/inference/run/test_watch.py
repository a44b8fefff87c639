"""The watch in fits: what is measured and kept, who is named, and that it changes nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from support.federations import blobs
from support.liars import LIAR, LIES, lying, names_of
from support.methods import network_for
from support.sites import Sites

from hierfl.data.client_names import in_words
from hierfl.inference import Run, fit
from hierfl.inference.run.watched import Watched, announce
from hierfl.inference.server.robust import watch
from hierfl.inference.server.robust.standing import StandsOut
from hierfl.models import FedAvg, FedPAC, PFedVEM

SIZES = [23, 17, 14, 14, 14, 15, 9, 16, 16, 8]
HOW: dict[str, Any] = {"rounds": 4, "seed": 3, "dtype": torch.float64}
RULES = ("trimmed:0.1", "median", "centred-clip:2", "krum:1")


def run(cls: Any = FedAvg, lie: str = "", **how: Any) -> Run:
    federation = blobs(SIZES)
    with lying(LIES[lie]() if lie else None):
        return fit(cls(network_for(cls, federation)), federation, progress=False, **{**HOW, **how})


def test_the_watch_changes_nothing() -> None:
    """To the bit."""
    watched = run()
    with mock.patch.object(watch, "WATCHED_BYTES", 0):
        plain = run()
    assert plain.watched is None
    assert watched.watched is not None
    assert all(torch.equal(v, plain.shared[k]) for k, v in watched.shared.items())
    assert watched.warnings == []


@pytest.mark.parametrize("cls", [FedAvg, PFedVEM])
@pytest.mark.parametrize("lie", ["x -10", "x 1e5", "n_j and tau x 1e9"])
def test_a_gross_liar_is_named(cls: Any, lie: str) -> None:
    """With a robust rule and without; with one the shared values stay near those without the liar."""
    assert names_of(run(cls, lie)) == str(LIAR)
    robust_run = run(cls, lie, robust="trimmed:0.1")
    assert names_of(robust_run) == str(LIAR)
    (line,) = robust_run.warnings
    assert line.startswith(f"{in_words(robust_run.ids[LIAR])} stands out by ")
    honest = run(cls)
    for name, value in robust_run.shared.items():
        assert (value - honest.shared[name]).abs().max() < 0.5, name


def test_who_sends_its_first_message_again_is_named() -> None:
    replayed = run(lie="stale replay")
    assert str(LIAR) in names_of(replayed).split()
    assert any("sent again (round 2)" in line for line in replayed.warnings)


def test_tables_of_a_run() -> None:
    watched = run(lie="x 1e5").watched
    assert watched is not None
    table = watched.influence
    assert table.columns.tolist() == ["round", "client", "norm", "cosine", "influence"]
    assert len(table) == 4 * len(SIZES)
    first = table[table["round"] == 1].set_index("client")
    assert first["norm"].idxmax() == first["influence"].idxmax() == watched.names[LIAR]
    assert len(watched.estimates) == 0
    # Squares are in units of their median.
    assert first["norm"].median() == pytest.approx(1.0, abs=0.1)


def test_a_study_says_at_once_who_stands_out_and_at_its_end_what_that_moves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Estimates of a round before the last are not those of the fit; without a digit's change there are none."""
    row = StandsOut(client=0, round=3, what=0, distance=9.0)
    numbers = (np.array([[1.0], [1.0]]), np.array([[2.0], [1.00001]]), np.array([0.5]))
    watched = Watched(["a", "b"], np.zeros((3, 2, 4)), [row], ["x"], *numbers)
    monkeypatch.setattr(Watched, "from_watch", lambda *_: watched)
    soon = watch.Watch(exchange=None)  # type: ignore[arg-type]
    for _ in range(2):
        announce(soon, watched.names)
    words = f"a stands out by {row.words} (round 3), 9 spreads from the others'"
    assert [record.message for record in caplog.records] == [words]
    assert watched.lines == [f"{words}; x is 1 with it and 2 without (standard error 0.5, by the variances of all)"]
    assert watched.line(replace(row, client=1)) == words.replace("a stands", "b stands")


def test_who_does_not_report_is_not_measured() -> None:
    watched = run(participation=0.5, seed=1).watched
    assert watched is not None
    assert 0 < len(watched.influence) < 4 * len(SIZES)


def test_methods_that_look_at_messages_are_watched_too() -> None:
    assert run(FedPAC, rounds=2).watched is not None


@pytest.mark.parametrize("robust", ["none", "median"])
def test_a_resumed_fit_goes_on(robust: str, tmp_path: Path) -> None:
    whole = run(lie="x -10", robust=robust)
    run(lie="x -10", robust=robust, rounds=2, folder=tmp_path)
    rest = run(lie="x -10", robust=robust, folder=tmp_path, resume=True)
    assert all(torch.equal(v, rest.shared[k]) for k, v in whole.shared.items())
    assert whole.watched is not None
    assert rest.watched is not None
    assert whole.warnings == rest.warnings
    assert np.array_equal(whole.watched.measured, rest.watched.measured, equal_nan=True)


@pytest.mark.cpu(4, "ten sites by bytes")
@pytest.mark.parametrize("rule", RULES)
def test_sites_by_bytes_have_the_bits_of_the_plate(rule: str, tmp_path: Path) -> None:
    federation = blobs(SIZES)
    plate = run(robust=rule, rounds=2, chunk=1)
    sites = Sites(FedAvg(network_for(FedAvg, federation)), federation, tmp_path, robust=rule, chunk=1,
                  **{**HOW, "rounds": 2})  # fmt: skip
    site_run = sites.fit()
    assert all(torch.equal(v, site_run.shared[k]) for k, v in plate.shared.items())
    assert plate.watched is not None
    assert site_run.watched is not None
    assert plate.watched.influence.equals(site_run.watched.influence)
