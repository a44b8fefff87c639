"""A study with noise inside its sites: what leaves, what is asked, and which studies cannot have it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from support.noisy_study import noisy_place, noisy_study, own_files

from hierfl.errors import UserError
from hierfl.experiments.federate.draft import draft
from hierfl.experiments.federate.leaving import leaving
from hierfl.experiments.federate.public_sums import public_sums, same_sums
from hierfl.experiments.federate.site_results import site_run, write_site_results
from hierfl.experiments.federate.study import Study
from hierfl.experiments.federate.study_site import Membership, read_site_data
from hierfl.experiments.report.run_page import write_run_page
from hierfl.inference.engines.remote.wire import decode


@pytest.mark.cpu(6, "a study of four sites, and its report")
def test_a_study_with_noise_asks_for_nothing_that_has_none(tmp_path: Path) -> None:
    file_study = noisy_place(tmp_path, patient="who")
    kinds: list[str] = []
    file_study.watch = lambda name, request, answer: kinds.append(str(decode(request)[0]["kind"]))
    summary = file_study.serve()
    assert set(kinds) == {"hello", "round", "finish"}
    assert summary["dp"]["epsilon"] == pytest.approx(2.0)
    assert summary["dp"]["unit"] == "patient"
    assert summary["dp"]["simulated"] is False
    assert summary["dp"]["parts"]["sums"]["releases"] == 3
    assert json.loads((tmp_path / "server" / "summary.json").read_text()) == summary
    assert summary["gm_accuracy"] is None
    page = write_run_page(tmp_path / "server").read_text()
    assert "Differential privacy" in page
    assert "metrics are null: scores have no share of epsilon" in page
    # what a site keeps is no simulation, has no noise, and says both
    member = Membership.read(file_study.site_folder("h01"))
    page = write_run_page(write_site_results(member, site_run(member), by_row=False)).read_text()
    assert "1 client, " in page
    assert "everything that left this site, together" in page
    assert "its model, metrics and pictures are of its rows without noise" in page
    assert "simulation" not in page
    assert "metrics are null" not in page
    # Of two rows of each patient one counts.
    rows = pd.read_csv(file_study.files["h01"])
    site_data = read_site_data(Study.read(file_study.study), file_study.files["h01"], "h01")
    assert site_data.rows == rows["who"].nunique()
    assert site_data.beyond == len(rows) - site_data.rows


def test_what_is_known_of_all_rows_is_the_dictionarys(tmp_path: Path) -> None:
    """Two sets of files, one study: the same constants, and no sums leave before the first round."""
    files = own_files(tmp_path)
    study = Study.read(noisy_study(tmp_path, files))
    sums, other_sums = public_sums(study), public_sums(study)
    assert same_sums(sums, other_sums)
    assert all(torch.equal(sums[0][name], other_sums[0][name]) for name in sums[0])
    mean, sd = study.data.constants([{k: v.numpy() for k, v in sums[0].items()}])  # type: ignore[attr-defined]
    assert mean[0] == pytest.approx(60, abs=3)
    assert sd[0] == pytest.approx(120 / 12**0.5, rel=0.05)
    site = read_site_data(study, files["h01"], "h01")
    values = leaving(study, site)
    assert {value.request.split(",")[0] for value in values} == {"hello", "round (message of 'w')"}
    assert "with noise of this site: sums" in values[-1].meaning
    assert not same_sums(sums, [{**sums[0], "n": sums[0]["n"] + 1}])
    assert not same_sums(sums, [])


CHANGES: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda t: t["privacy"].update(new_clients=True), "new_clients = false"),
    (lambda t: t["data"].update(test_fraction=0.2), "test_fraction = 0"),
    (lambda t: t["data"].update(validation_fraction=0.1), "validation_fraction = 0"),
    (lambda t: t["columns"]["age"].pop("most"), "lacks least and most of age"),
    (lambda t: t["privacy"].update(dp="client"), "masked = true as well"),
    (lambda t: t["privacy"].update(patient_rows=2), "patient = the column"),
    (lambda t: t["privacy"].update(dp="none", epsilon=0.0, patient="who"), 'dp = "site" as well'),
    (lambda t: t["privacy"].update(epsilon=0.0), "epsilon is a number above 0"),
    (lambda t: t["run"].update(calibrate="temperature"), "validation"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), CHANGES)
def test_studies_that_cannot_have_noise_are_one_line(
    change: Callable[[dict[str, Any]], Any], words: str, tmp_path: Path
) -> None:
    path = noisy_study(tmp_path, own_files(tmp_path))
    table = tomllib.loads(path.read_text())
    change(table)
    with pytest.raises(UserError, match=words) as error:
        Study.from_table(table, path)
    assert "\n" not in str(error.value)


def test_a_method_that_reads_rows_without_noise_is_refused(tmp_path: Path) -> None:
    sample = tmp_path / "sample.csv"
    pd.DataFrame({"age": [40.5, 80.5], "ill": [False, True]}).to_csv(sample, index=False)
    options = {"rounds": 2, "network": "mlp:4", "dp": "site", "epsilon": 1.0, "usual_rows": 50}
    for method, words in (("fedproto", "reads data without noise"), ("local", "sends nothing")):
        with pytest.raises(UserError, match=words) as error:
            draft(method, sample, ["a", "b", "c"], "s", options, {}, y="ill", out=tmp_path / "study.toml")
        assert "\n" not in str(error.value)
    assert 'dp = "site"' in draft("fedavg", sample, ["a", "b", "c"], "s", options, {}, y="ill", out=tmp_path / "s.toml")


def test_a_draft_has_the_samples_ranges_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = noisy_study(tmp_path, own_files(tmp_path), columns=None)
    table = tomllib.loads(path.read_text())
    assert {"epsilon": 2.0, "delta": 1e-5, "patient_rows": 1}.items() <= table["privacy"].items()
    column = table["columns"]["age"]
    assert (column["least"], column["most"]) == (40.5, 80.5)
    assert "the range of 'age' is the sample's, 40.5 to 80.5: edit it in study.toml" in caplog.text


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({"who": [1, None, 2]}, "lacks 1 of its 3 values"),
        ({}, "no column 'who'"),
    ],
)
def test_a_patients_column_that_cannot_be(rows: dict[str, Any], words: str, tmp_path: Path) -> None:
    study = Study.read(noisy_study(tmp_path, own_files(tmp_path), patient="who"))
    path = tmp_path / "mine.csv"
    pd.DataFrame({"age": [50.5, 60, 70], "stage": ["I", "II", "I"], "ill": [0, 1, 0], **rows}).to_csv(path, index=False)
    with pytest.raises(UserError, match=words):
        read_site_data(study, path, "h01")
