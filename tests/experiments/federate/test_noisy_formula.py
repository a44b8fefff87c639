"""A study of a mixed model with noise inside its sites: one round, ranges of the dictionary, epsilon in the summary."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.studies import PATIENTS, FileStudy, formula_study, patients, write_tables

from hierfl.errors import UserError
from hierfl.inference.engines.remote.wire import decode

COLUMNS: dict[str, Any] = {**PATIENTS, "y": {"kind": "number", "least": -5, "most": 5}}
HOW = {"formula": "y ~ age + stage + (1 | site)", "dp": "site", "epsilon": 6.0, "rounds": 8}


@pytest.mark.slow
@pytest.mark.cpu(8, "a study of six sites by files")
def test_sites_send_one_set_of_noisy_sums(tmp_path: Path) -> None:
    files = write_tables(patients(6, seed=3), tmp_path / "data")
    file_study = FileStudy(formula_study(tmp_path, files, COLUMNS, settings={"draws": 40}, **HOW), files, tmp_path)
    asked: list[tuple[str, dict[str, Any]]] = []

    def watch(name: str, request: bytes, answer: bytes) -> None:
        asked.append((str(decode(request)[0]["kind"]), decode(answer)[1]))

    file_study.watch = watch
    summary = file_study.serve()
    assert {kind for kind, _ in asked} == {"hello", "round", "finish"}
    sent = [tensors for kind, tensors in asked if kind == "round"]
    assert len(sent) == 6
    # Intercept, age, three levels and y: 21 products, and nothing else.
    assert {tensor.numel() for tensors in sent for tensor in tensors.values()} == {21}
    assert summary["dp"]["epsilon"] == pytest.approx(6.0, rel=1e-6)
    assert list(summary["dp"]["parts"]) == ["statistics"]
    with open(tmp_path / "server" / "effects.csv", newline="") as file:
        effects = {row["effect"]: row for row in csv.DictReader(file)}
    assert list(effects)[:5] == ["Intercept", "age", "stage[II]", "stage[III]", "stage[IV]"]
    for row in effects.values():
        assert np.isfinite(float(row["estimate"]))
        assert float(row["lower"]) < float(row["upper"])


def test_a_study_without_ranges_says_which_are_missing(tmp_path: Path) -> None:
    files = write_tables(patients(4), tmp_path / "data")
    with pytest.raises(UserError, match="it lacks least and most of y"):
        FileStudy(formula_study(tmp_path, files, PATIENTS, **HOW), files, tmp_path).serve()
