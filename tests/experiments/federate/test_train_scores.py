"""A study whose sites give no scores on training rows: it runs to its end, and everything reads its results."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from support.commands import Call
from support.studies import FileStudy, formula_study, patients, write_tables

from hierfl.experiments.federate.guard.simulated import PERMISSIVE_POLICY


@pytest.mark.slow
def test_metrics_are_null_and_effects_as_before(tmp_path: Path, hierfl: Call) -> None:
    files = write_tables(patients(4), tmp_path / "data")
    path = formula_study(tmp_path / "study", files, rounds=30)
    results = {}
    for name, policy in (("open", PERMISSIVE_POLICY), ("reticent", replace(PERMISSIVE_POLICY, train_scores=False))):
        study = FileStudy(path, files, tmp_path / name, policy=policy)
        summary = study.serve()
        folder = tmp_path / name / "server"
        results[name] = summary, (folder / "effects.csv").read_text(), pd.read_csv(folder / "metrics.csv"), folder
    assert results["open"][1] == results["reticent"][1]
    summary, _, metrics, folder = results["reticent"]
    assert metrics["pm_rmse"].isna().all()
    assert len(metrics) == len(results["open"][2])
    assert results["open"][2]["pm_rmse"].notna().all()
    assert json.loads((folder / "summary.json").read_text()) == summary
    assert summary["warnings"] == [
        "4 of 4 sites give no scores of training rows: metrics are empty; estimates do not depend on them"
    ]
    assert not results["open"][0]["warnings"]
    code, out, err = hierfl("report", tmp_path / "reticent" / "h01")  # a site sees its own rows
    assert code == 0, out + err
