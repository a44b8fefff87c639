"""A calibration that is stopped goes on, and what it says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.any_models import FEW, brief

from hierfl import UserError
from hierfl.models.any_model.sbc.blocks import Blocks, Ranked
from hierfl.models.any_model.sbc.study import RANKS, RESULT, Calibration, calibrate
from hierfl.models.any_model.sbc.table import made_rows


def study(folder: Path, replicates: int, seed: int = 0) -> Calibration:
    rows = made_rows(brief, 2, 3, {}, 0)
    blocks = Blocks(brief, rows, seed, dict(FEW))
    blocks.__dict__["size"] = 2
    return calibrate("brief", blocks, rows.words, replicates, folder, {"seed": seed}, progress=False)


@pytest.mark.cpu(4, "six fits, of two clients each")
def test_one_that_was_stopped_goes_on_and_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = study(tmp_path / "whole", 4)
    block = Blocks.block

    def stopped(self: Blocks, number: int, count: int) -> list[Ranked]:
        if number == 1:
            raise KeyboardInterrupt
        return block(self, number, count)

    with monkeypatch.context() as patch:
        patch.setattr(Blocks, "block", stopped)
        with pytest.raises(KeyboardInterrupt):
            study(tmp_path / "part", 4)
    assert len(json.loads((tmp_path / "part" / RANKS).read_text())["replicates"]) == 2
    counted: list[int] = []

    def count(self: Blocks, number: int, count: int) -> list[Ranked]:
        counted.append(number)
        return block(self, number, count)

    monkeypatch.setattr(Blocks, "block", count)
    again = study(tmp_path / "part", 4)
    assert counted == [1]
    assert [replicate.ranks for replicate in again.replicates] == [replicate.ranks for replicate in whole.replicates]
    assert (tmp_path / "part" / RESULT).read_bytes() == (tmp_path / "whole" / RESULT).read_bytes()
    with pytest.raises(UserError, match="another calibration: seed differs"):
        study(tmp_path / "part", 4, seed=1)


def ranked(ranks: np.ndarray, failed: int = 0) -> Calibration:
    made = [Ranked({"mu": int(rank)}, 9, 400.0, 0.1, [], "", 0) for rank in ranks]
    made += [Ranked({}, 200, 0.0, 0.0, [], "not arrived", 0)] * failed
    return Calibration("model", "", 399, made, ["mu"], [])


def test_the_last_line_says_whether_intervals_cover() -> None:
    rng = np.random.default_rng(0)
    assert ranked(rng.integers(0, 400, 300)).lines()[-1].startswith("intervals cover: 90% intervals hold")
    assert "too few replicates" in ranked(np.arange(10, 400, 20)).lines()[-1]
    narrow = ranked((rng.beta(0.6, 0.6, 300) * 400).astype(int), failed=5).lines()
    assert "305 replicates: 5 without a posterior" in narrow[0]
    assert "not arrived" in narrow[1]
    assert narrow[-1].startswith("intervals do not cover")
    assert "mu, posteriors are too narrow" in narrow[-1]
    assert "nothing is known" in ranked(np.zeros(0), failed=2).lines()[-1]
