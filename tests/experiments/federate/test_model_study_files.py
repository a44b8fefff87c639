"""Study files, samples and sites' tables of a plain Pyro model: what does not fit is one line."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import tomli_w
from support.commands import Call
from support.model_studies import WARDS, model_study, visits
from support.studies import write_tables

from hierfl.errors import UserError
from hierfl.experiments.federate.draft import draft
from hierfl.experiments.federate.dry_run import dry_run
from hierfl.experiments.federate.study import Study
from hierfl.experiments.federate.study_site import read_site_data

CHANGES: list[tuple[Callable[[dict], Any], str]] = [
    (lambda t: t["data"].update(kind="formula"), "formula"),
    (lambda t: t["privacy"].update(new_clients=True), "begins at its prior: new_clients = false"),
    (lambda t: t["columns"].pop("x"), "unknown column 'x'|column 'x'"),
    (lambda t: t["columns"]["ward"].update(kind="name") or t["columns"]["ward"].pop("levels"), "column 'ward'"),
    (lambda t: t["data"].update(na="guess"), "value of data.na"),
    (lambda t: t["data"].update(formula="y ~ x"), "unknown entry"),
    (lambda t: t.update(model="other"), "has no model 'other'; it has model"),
    (lambda t: t["privacy"].update(dp="site", epsilon=1.0, delta=1e-5), "messages of a plain model have no bound"),
    (lambda t: t["settings"].update(colour=1), "colour"),
]


@pytest.mark.parametrize(("change", "line"), CHANGES, ids=[line[:30] for _, line in CHANGES])
def test_what_says_nothing_or_something_wrong_is_one_line(
    change: Callable[[dict], Any], line: str, tmp_path: Path
) -> None:
    path = model_study(tmp_path, write_tables(visits(), tmp_path / "data"))
    table = tomllib.loads(path.read_text())
    change(table)
    path.write_text(tomli_w.dumps(table))
    with pytest.raises(UserError, match=line) as error:
        Study.read(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "more", "line"),
    [
        ({"formula": "y ~ x"}, {}, "--formula is not for a model such as visits: the model is the file's"),
        ({"network": "mlp:4"}, {}, "--network is not for a model such as visits"),
        ({"test_fraction": 0.2}, {}, "--test-fraction is not for a model such as visits"),
        ({"group": "site"}, {}, "--group is not for a model such as visits: the rows of a site are one client"),
        ({}, {"y": "visits"}, "--x and --y are not for a model such as visits"),
        ({"model": "other"}, {}, "has no model 'other'"),
    ],
)
def test_options_of_other_methods_are_refused(given: dict, more: dict, line: str, tmp_path: Path) -> None:
    own = write_tables(visits(), tmp_path / "data")
    model_study(tmp_path, own)
    about = (str(tmp_path / "visits.py"), tmp_path / "sample.csv", list(own), "visits")
    with pytest.raises(UserError, match=line):
        draft(*about, given, {}, out=tmp_path / "other.toml", **more)


def test_a_sample_without_a_column_names_it(tmp_path: Path) -> None:
    own = write_tables(visits(), tmp_path / "data")
    model_study(tmp_path, own)
    pd.DataFrame({"visits": [1, 2], "ward": WARDS}).to_csv(tmp_path / "less.csv", index=False)
    with pytest.raises(UserError, match="unknown column 'x'"):
        draft(str(tmp_path / "visits.py"), tmp_path / "less.csv", list(own), "s", {}, {}, out=tmp_path / "other.toml")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda df: df.drop(columns="ward"), "the table has no column 'ward'"),
        (lambda df: df.assign(ward="east"), "column 'ward' has 27 values that are none of its 2 levels"),
        (lambda df: df.assign(visits=df["visits"] + 0.5), "column 'visits' holds decimals, and is declared whole"),
        (lambda df: df.assign(visits=-1), "the model does not fit these rows"),
    ],
)
def test_a_file_that_does_not_fit_is_one_line(change: Callable, line: str, tmp_path: Path) -> None:
    """Columns that the model does not read may be missing, hold text or have holes."""
    own = write_tables(visits(), tmp_path / "data")
    study, good = Study.read(model_study(tmp_path, own)), pd.read_csv(own["s00"])
    assert read_site_data(study, own["s00"], "s00").rows == 27
    good.drop(columns=["diary", "dose"]).to_csv(own["s00"], index=False)
    assert read_site_data(study, own["s00"], "s00").rows == 27
    change(good).to_csv(own["s00"], index=False)
    with pytest.raises(UserError, match=line) as error:
        read_site_data(study, own["s00"], "s00")
    assert "\n" not in str(error.value)


def test_the_command_drafts_and_checks(tmp_path: Path, hierfl: Call) -> None:
    own = write_tables(visits(), tmp_path / "data")
    model_study(tmp_path, own)
    names = [part for name in own for part in ("--site", name)]
    file, out = tmp_path / "visits.py", tmp_path / "again.toml"
    code, _, error = hierfl(
        "federate", "study", file, "--sample", tmp_path / "sample.csv", "--model", "model", *names, "--out", out
    )
    assert (code, error) == (0, "")
    table = tomllib.loads(out.read_text())
    assert (table["model"], table["data"]["kind"]) == ("model", "model")
    assert list(table["columns"]) == ["visits", "x", "ward"]
    assert table["columns"]["ward"] == {"kind": "category", "levels": list(WARDS)}
    code, text, error = hierfl("federate", "check", out, "--data", own["s01"])
    assert (code, error) == (0, "")
    assert "14 rows fit study" in " ".join(text.split())
    assert "second derivatives of its bound" in " ".join(text.split())


SERIES = """\
import pyro
import torch
from pyro.distributions import Normal


def model(batch):
    mu = pyro.sample("mu", Normal(0.0, 5.0))
    with pyro.plate("client", batch.num_clients, dim=-2):
        step = pyro.sample("step", Normal(mu * torch.ones(batch.width), 0.5).to_event(1))
        with pyro.plate("data", batch.width, dim=-1):
            pyro.sample("y", Normal(step.squeeze(-2), 1.0), obs=batch["x"])
"""


@pytest.mark.cpu(4, "a draft and a study in one process")
def test_latents_of_rows_are_for_as_many_rows_as_all_agree_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The draft says how many; without the word, and with more rows, one line. Shorter sites are padded."""
    own = write_tables(visits((6, 4, 5)), tmp_path / "data")
    path = model_study(tmp_path, own, SERIES)
    assert "sites are taken to have at most 50 rows: edit most_rows in study.toml" in caplog.text
    table = tomllib.loads(path.read_text())
    assert table["privacy"].pop("most_rows") == 50
    path.write_text(tomli_w.dumps(table))
    with pytest.raises(UserError, match="latents for each row of a site: all sites agree .*, most_rows in the part"):
        Study.read(path)
    table["privacy"]["most_rows"] = 5
    path.write_text(tomli_w.dumps(table))
    study = Study.read(path)
    assert read_site_data(study, own["s01"], "s01").rows == 4
    with pytest.raises(UserError, match="has 6 rows, more than the 5 that the study allows"):
        read_site_data(study, own["s00"], "s00")
    trial = dry_run(study)
    assert (trial.stopped, trial.rows) == ("", 5)
