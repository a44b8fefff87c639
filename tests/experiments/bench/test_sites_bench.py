"""What sites cost is measured on the same work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.commands import Call

from hierfl.experiments.bench import sites


def test_contestants_do_the_same_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plate of everybody's data and sites through bytes have the same values after a round."""
    monkeypatch.setattr(sites, "EXAMPLES", 140)
    study, files = sites._study(3, tmp_path)
    method, federation = sites._plate(study, files)
    plate = sites.Fit(method, federation, sites.replace(study.options("cpu"), chunk=1))
    remote = sites._through_bytes(study, files, tmp_path, {"to": 0, "from": 0})
    plate.step()
    remote.step()
    for name, value in plate.state.shared.items():
        torch.testing.assert_close(remote.state.shared[name], value, rtol=1e-4, atol=1e-6)


def test_the_benchmark_writes_what_it_measured(hierfl: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "EXAMPLES", 140)
    out = tmp_path / "bench.json"
    code, text, _ = hierfl("bench", "sites", "--clients", "2", "--repeats", "1", "--no-references", "--out", out)
    assert code == 0
    assert "2 sites, a round" in text
    (result,) = json.loads(out.read_text())["results"]
    assert result["sites"] == 2
    assert result["bytes_a_round"]["from"] > 1000
    assert min(result["cpu_seconds_a_message"].values()) > 0
    code, _, error = hierfl("bench", "sites", "--clients", "2", "--batch", "3")
    assert code == 2
    assert "without --batch" in error
    code, _, error = hierfl("bench", "sites", "--clients", "1")
    assert (code, error.count("\n")) == (2, 1)


@pytest.mark.slow
def test_processes_are_measured_too(hierfl: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "FEW_ROUNDS", 1)
    monkeypatch.setattr(sites, "MANY_ROUNDS", 2)
    timings = sites.measure_sites(2, 1, True, tmp_path, lambda text: None)
    assert {"plate, a process", "two ranks", "files"} < set(timings["seconds_a_round"])
    assert timings["seconds_a_round"]["files"] > 0
