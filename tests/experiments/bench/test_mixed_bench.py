"""Mixed models' CPU seconds are measured, and beside lme4's where R is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import Call

from hierfl.experiments.bench import mixed
from hierfl.experiments.bench.mixed_tables import CASES, Case, schools, sites, six


def test_tables_have_their_sizes() -> None:
    assert len(schools()) == 7230
    assert schools().groupby("child").size().max() <= 5
    assert schools().school.nunique() == 60
    assert sites(5, 2000, 2).groupby("site").size().tolist() == [400] * 5
    assert set(sites(5, 2000, 4, binary=True).y) == {0.0, 1.0}
    assert six().groupby("site").size().tolist() == [100] * 8
    assert {case.most for case in CASES.values()} == {1.0, 2.0, 3.0}


@pytest.mark.cpu(20, "fits in processes of their own")
def test_the_benchmark_writes_what_it_measured(
    hierfl: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    case = Case(lambda: sites(4, 80, 0), "y ~ x + (1 | site)")
    monkeypatch.setattr(mixed, "CASES", {"small": case})
    monkeypatch.setattr(mixed, "DRAWS", ("small",))
    out = tmp_path / "bench.json"
    code, text, _ = hierfl("bench", "mixed", "--repeats", "1", "--no-references", "--out", out)
    assert code == 0
    assert "small" in text
    assert "with draws" in text
    result = json.loads(out.read_text())["results"]["small"]
    assert len(result["hierfl"]["again"]) == len(result["draws"]["again"]) == 1
    assert result["hierfl"]["log_likelihood"] == result["draws"]["log_likelihood"]
    assert "lme4" not in result
    code, _, error = hierfl("bench", "mixed", "--clients", "3")
    assert code == 2
    assert "without --clients" in error


def test_ratios_are_of_medians_and_of_first_fits_where_there_are_no_others() -> None:
    taken = {"hierfl": {"first": 9.0, "again": [1.0, 2.0, 8.0], "grown_mib": 3.0}, "most": 2.0}
    taken["lme4"] = {"first": 0.5, "again": []}
    assert mixed.ratio(taken) == 4.0
    assert "ratio 4.00 (wanted 2)" in mixed.line("a fit", taken)
