"""What a run's summary says in words: an ECE that clients' few test examples can bear."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.run_folders import Finished

from hierfl.experiments.run_folder.summary import calibration_lines, ece_lines

#: of phones with a dozen test photos each
FEW: dict[str, Any] = {
    "test_examples_median": 18, "pm_ece": 0.115, "pm_ece_pooled": 0.042, "pm_draws_ece_pooled": 0.074, "pm_nll": 0.277,
    "pm_temperature": 0.866, "pm_tempered_nll": 0.265, "pm_tempered_ece": 0.104, "pm_tempered_ece_pooled": 0.027,
}  # fmt: skip


def test_clients_with_few_test_examples_have_one_ece_together() -> None:
    (line,) = ece_lines(FEW)
    assert line.startswith("ECE of all test examples together: 0.042 at the posterior mean, 0.074 averaged draws.")
    assert "half of the clients have less than 20 test examples" in line
    assert calibration_lines(FEW) == [
        "temperature 0.866 at the posterior mean: NLL 0.277, now 0.265, "
        "ECE of all test examples together 0.042, now 0.027"
    ]
    for many in ({"test_examples_median": 20}, {"test_examples_median": None}, {}):
        summary = {name: value for name, value in FEW.items() if name != "test_examples_median"} | many
        assert not ece_lines(summary)
        assert "ECE 0.115, now 0.104" in calibration_lines(summary)[0]
    assert not ece_lines({"test_examples_median": 18, "pm_rmse": 1.0})


def test_a_temperature_of_few_validation_examples_says_so() -> None:
    *_, line = calibration_lines(FEW | {"calibration_examples": 2})
    assert line.startswith("the temperature is from 2 validation examples of all clients together, which determine")
    *_, line = calibration_lines(FEW | {"calibration_examples": 1})
    assert "from 1 validation example of all clients together, which determines it poorly" in line
    assert len(calibration_lines(FEW | {"calibration_examples": 20})) == 1
    (sets,) = calibration_lines({"calibration_examples": 1, "set_alpha": 0.1, "set_threshold": 1.0})
    assert sets.endswith("90.0%: 1 validation example is too few, every label stays")


def test_a_summary_has_the_median_of_the_test_examples(finished: Finished, tmp_path: Path) -> None:
    finished("pfedvem", tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["test_examples_median"] == 360
    assert 0 < summary["pm_draws_ece_pooled"] < 1
