"""Runs of several seeds, gathered."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.commands import Call, command
from support.run_folders import SHORT

from hierfl import UserError


def test_runs_are_gathered_over_seeds(hierfl: Call, tmp_path: Path) -> None:
    from hierfl.experiments.compare.over_seeds import markdown, summarise_over_seeds

    for seed in (0, 1):
        assert hierfl("run", "fedavg", *SHORT, "--seed", seed, "--out", f"r{seed}")[0] == 0
    command("collect", "r0", "r1", "--out", "table.json")
    (record,) = json.loads((tmp_path / "table.json").read_text())
    values = [json.loads((tmp_path / f"r{s}/summary.json").read_text())["pm_accuracy"] for s in (0, 1)]
    assert record["pm_accuracy"] == pytest.approx(np.mean(values))
    assert record["pm_accuracy_se"] == pytest.approx(abs(values[0] - values[1]) / 2)
    assert "| fedavg |" in markdown([record])
    with pytest.raises(UserError, match="same seed twice"):
        summarise_over_seeds([tmp_path / "r0", tmp_path / "r0"])
    assert hierfl("run", "fedavg", *SHORT, "--set", "lr=0.2", "--seed", 2, "--out", "other")[0] == 0
    with pytest.raises(UserError, match="differ in more than their seed"):
        summarise_over_seeds([tmp_path / "r0", tmp_path / "other"])
