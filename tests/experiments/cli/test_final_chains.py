"""`hierfl run --final chains`: what it leaves, and that it goes on where it was stopped."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from support.commands import Call
from support.run_folders import arrays

from hierfl.arviz_io import read
from hierfl.experiments.run_folder.config_file import read_config
from hierfl.experiments.run_folder.identity import setting_of

SMALL = ["--data", "d.npz", "--network", "mlp:3", "--split", "natural", "--rounds", 2, "--quiet"]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Chains of few steps, on few examples."""
    arrays(tmp_path / "d.npz")
    monkeypatch.setattr("hierfl.inference.method.final_chains.BURN", 10)
    monkeypatch.setattr("hierfl.inference.method.final_chains.KEPT", 10)


@pytest.mark.usefixtures("short")
def test_final_chains_are_kept_told_and_repeated(hierfl: Call, tmp_path: Path) -> None:
    for out, more in (("plain", []), ("a", ["--final", "chains"])):
        code, _, err = hierfl("run", "pfedvem", *SMALL, "--out", out, *more)
        assert code == 0, err
    data, summary = read(tmp_path / "a/posterior.nc"), json.loads((tmp_path / "a/summary.json").read_text())
    assert (data.posterior.sizes["chain"], data.posterior.sizes["draw"]) == (4, 10)
    assert {"acceptance_rate", "diverging", "step_size", "lp"} == set(data.sample_stats.data_vars)
    assert summary["rhat"] is not None
    assert summary["ess_bulk"] <= summary["ess_bulk_median"]
    assert tomllib.loads((tmp_path / "a/config.toml").read_text())["run"]["final"] == "chains"
    assert setting_of(read_config(tmp_path / "a")) != setting_of(read_config(tmp_path / "plain"))
    plain = json.loads((tmp_path / "plain/summary.json").read_text())
    assert plain["rhat"] is None
    assert plain["gm_nll"] == summary["gm_nll"]
    before = (tmp_path / "a/posterior.nc").read_bytes()
    code, _, err = hierfl("run", "--resume", "a", "--quiet")
    assert code == 0, err
    assert (tmp_path / "a/posterior.nc").read_bytes() == before
    code, _, err = hierfl("report", "a", "--rhat", "--no-features", "--quiet")
    assert code == 0, err


@pytest.mark.usefixtures("short")
def test_what_cannot_end_so_is_one_line_and_leaves_nothing(hierfl: Call, tmp_path: Path) -> None:
    for command, words in (
        (["pfedvem", "--prior", "flat", "--final", "chains"], "flat prior"),
        (["fedavg", "--final", "chains"], "has 0"),
        (["pfedvem", "--final", "samples"], "known: method, chains"),
    ):
        code, _, err = hierfl("run", *command, *SMALL, "--out", "no")
        assert code == 2
        assert words in err
        assert len(err.splitlines()) == 1
        assert not (tmp_path / "no").exists()
    code, _, err = hierfl("run", "mixed-effects", "--final", "chains", "--quiet")
    assert code == 2
    assert "draws from its posterior by itself" in err
