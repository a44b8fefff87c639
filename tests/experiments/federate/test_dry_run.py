"""A study with made-up sites comes to its end, or says what would stop it; nothing is kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.commands import Call
from support.parties import Parties
from support.studies import PATIENTS, formula_study, patients, write_tables, written

from hierfl.data.federated.dictionary import Column
from hierfl.experiments.federate.draft import draft
from hierfl.experiments.federate.dry_run import dry_run
from hierfl.experiments.federate.made_up import make_up_files, values_of
from hierfl.experiments.federate.study import Study
from hierfl.experiments.federate.study_site import read_site_data

#: families, and how their response is declared
FAMILIES = {
    "gaussian": {"kind": "number", "least": -3, "most": 9}, "poisson": {"kind": "whole", "least": 0},
    "binomial": {"kind": "flag"}, "gamma": {"kind": "number"}, "negative-binomial": {"kind": "whole"},
    "lognormal": {"kind": "number", "least": 0.1},
    "beta": {"kind": "number", "least": 0, "most": 1}, "binomial-cloglog": {"kind": "flag"},
    "hurdle-poisson": {"kind": "whole", "least": 0, "most": 30}, "truncated-poisson": {"kind": "whole"},
}  # fmt: skip


@pytest.fixture
def own(tmp_path: Path) -> dict[str, Path]:
    return write_tables(patients(3), tmp_path / "data")


def test_a_whole_study(own: dict[str, Path], tmp_path: Path, hierfl: Call) -> None:
    study, out = formula_study(tmp_path, own, rounds=20), tmp_path / "server"
    code, text, error = hierfl("federate", "server", study, "--dry-run", "--out", out, "--quiet")
    assert (code, error) == (0, "")
    assert "3 made-up sites of 40 rows each" in text
    assert "(at most 20)" in text
    assert "kB to a site" in text
    assert "it comes to its end" in text
    assert not out.exists()


@pytest.mark.parametrize(("masked", "more"), [(False, 0), (True, 2)])
def test_requests_are_those_of_a_site_with_the_usual_policy(
    masked: bool, more: int, own: dict[str, Path], tmp_path: Path
) -> None:
    """Sums, a greeting, the rounds and the end; with masks keys and counts of sites too. Scores are not asked for."""
    trial = dry_run(Study.read(formula_study(tmp_path, own, rounds=20, masked=masked, parties=Parties.of(list(own)))))
    assert trial.requests == 2 + 1 + trial.rounds + 1 + more
    assert trial.masks == more


@pytest.mark.parametrize("family", FAMILIES)
def test_files_fit_what_was_declared(family: str, own: dict[str, Path], tmp_path: Path) -> None:
    study = Study.read(formula_study(tmp_path, own, {**PATIENTS, "y": FAMILIES[family]}, family=family))
    for name, path in make_up_files(study, tmp_path, 40).items():
        assert read_site_data(study, path, name).rows == 40


def test_what_stops_it_is_one_line(own: dict[str, Path], tmp_path: Path, hierfl: Call) -> None:
    about = {**PATIENTS, "y": {"kind": "number", "least": -9, "most": -1}}
    study = formula_study(tmp_path, own, about, family="gamma")
    trial = dry_run(Study.read(study))
    assert trial.stopped
    assert trial.lines()[-1].startswith("it would stop: no values of 'y' can be made up")
    assert "\n" not in trial.lines()[-1]
    assert hierfl("federate", "server", study, "--dry-run", "--quiet")[0] == 1


@pytest.mark.parametrize("classes", [0, 4])
@pytest.mark.cpu(5, "sites of images train networks")
def test_arrays(classes: int, tmp_path: Path) -> None:
    sample = tmp_path / "sample.npz"
    y = np.arange(20) % 4 if classes else np.linspace(0, 1, 20, dtype=np.float32)
    x = np.zeros((20, 8, 8), np.uint8)
    np.savez(sample, x_train=x, y_train=y, x_test=x, y_test=y)
    given = {"rounds": 2, "network": "mlp:8"}
    text = draft("fedavg", sample, ["north", "south"], "images", given, {"epochs": 1}, out=tmp_path / "study.toml")
    trial = dry_run(Study.read(written(tmp_path, text)))
    assert trial.stopped == ""
    assert (trial.rounds, trial.sites) == (2, 2)


@pytest.mark.parametrize(
    "column",
    [
        Column("number"), Column("number", least=3), Column("number", most=-2), Column("number", least=1, most=1.5),
        Column("whole"), Column("whole", least=0.5), Column("whole", most=4), Column("flag"),
        Column("category", (3, 1)), Column("category", ("a", "b c", "NA")),
    ],
)  # fmt: skip
def test_values_are_of_their_kind_and_range(column: Column) -> None:
    values = values_of(column, 40, np.random.default_rng(0))
    assert column.misfit(pd.Series(values)) == ""
