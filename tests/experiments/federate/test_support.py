"""A study with masks counts first at how many sites each part of its data occurs."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from support.cancelled import Cancelled
from support.parties import Parties
from support.studies import formula_study, patients, write_tables

from hierfl.errors import UserError
from hierfl.experiments.federate.server import Summing
from hierfl.experiments.federate.study import Study
from hierfl.experiments.federate.study_site import Membership
from hierfl.inference.engines.remote.preparation import prepare
from hierfl.inference.engines.remote.questions import Questions


def prepared(folder: Path, change: Any = lambda df: df) -> tuple[Study, list[str], Any]:
    """A study of six hospitals with masks, and what prepares it; kinds of the sums that sites were asked for."""
    own = write_tables(change(patients(6)), folder / "data")
    path, parties = formula_study(folder, own), Parties.of(own)
    parties.put_into(path)
    table = tomllib.loads(path.read_text())
    table["privacy"]["masked"] = True
    path.write_text(tomli_w.dumps(table))
    study = Study.read(path)
    sites = {name: Membership(folder / name, study, name, own[name]).site() for name in own}
    questions = Questions(
        study.clients, lambda asked: {name: sites[name].answer(request) for name, request in asked.items()},
        study.handshake, torch.device("cpu"),
    )  # fmt: skip
    masks: Any = Cancelled(questions)
    steps = masks.asked
    return study, steps, lambda: prepare(questions, Summing(study), folder / "server", masks)


@pytest.mark.cpu(3, "six sites read their tables")
def test_a_level_of_one_site_ends_the_study_before_its_sums_are_open(tmp_path: Path) -> None:
    def rare(df: Any) -> Any:
        df.loc[df.stage == "IV", "stage"] = "III"
        df.loc[df.index[df.site == "h03"][0], "stage"] = "IV"
        return df

    _, steps, prepares = prepared(tmp_path, rare)
    with pytest.raises(UserError, match="stage=IV.*: at fewer than 3 sites.*join levels in the dictionary"):
        prepares()
    assert [about["step"] for about in steps] == [0]


@pytest.mark.cpu(3, "six sites read their tables")
def test_counts_come_first_and_columns_are_as_ever(tmp_path: Path) -> None:
    study, steps, prepares = prepared(tmp_path)
    totals = prepares()
    assert [about["step"] for about in steps] == [0, 1, 2]
    assert list(totals[0]) == ["support"]
    assert set(totals[0]["support"].tolist()) <= {3.0, 4.0, 5.0, 6.0}
    assert float(totals[1]["n"]) == len(patients(6))
    assert Summing(study).steps == 3
