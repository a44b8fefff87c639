"""Withdrawing from a study, forgetting it, and the record of what it processed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.commands import Call
from support.homes import Kept, home_after
from support.once import Once
from support.studies import FileStudy, formula_study, patients, write_tables

from hierfl.errors import UserError
from hierfl.experiments.federate.guard.audit import Audit
from hierfl.experiments.federate.guard.home import has_ended
from hierfl.experiments.federate.guard.ledger import Ledger
from hierfl.experiments.federate.papers.forget import forget, when_ended
from hierfl.experiments.federate.papers.memory import FADES, STAYS, kept_by_server
from hierfl.experiments.federate.papers.record import as_json, as_markdown, record
from hierfl.experiments.federate.papers.withdraw import withdraw, withdrawal_of
from hierfl.experiments.methods import load
from hierfl.file_lock import Busy, locked
from hierfl.inference.engines.remote.site_state import STATE_FILE
from hierfl.models import METHODS


@pytest.fixture
def kept(tmp_path: Path, once: Once) -> Kept:
    """The home of a site of a study that has ended."""

    def fill(folder: Path) -> None:
        files = write_tables(patients(3), folder / "data")
        FileStudy(formula_study(folder, files, rounds=2), files, folder).serve()

    made = once("a small study that has ended", fill)
    return home_after(tmp_path, made / "study.toml", "h01", made / "h01")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_who_withdraws_keeps_no_state_and_has_said_so_in_both_places(kept: Kept) -> None:
    assert withdrawal_of(kept.home, kept.study, "h01", kept.ledger) is None
    left, deleted = withdraw(kept.home, kept.folder, "Dr North", kept.ledger)
    assert deleted == 3  # (the state, the sums, the stored answer)
    assert not names(kept.folder) - {"site.toml", "study.toml", "site.log", ".lock"}
    assert withdrawal_of(kept.home, kept.study, "h01", kept.ledger) == left
    line = Audit(kept.home.folder).lines[-1]
    assert (line["kind"], line["by"]) == ("withdraw", "Dr North")
    assert set(line["deleted"]) == {STATE_FILE, "prepared.safetensors", "answers/000001-round-x.reply"}
    assert all(len(digest) == 64 for digest in line["deleted"].values())
    # an older copy of the home, in which nothing of this stands, is out as well
    (kept.home.folder / "withdrawn" / f"{kept.study}.toml").unlink()
    assert withdrawal_of(kept.home, kept.study, "h01", kept.ledger) == left
    assert withdraw(kept.home, kept.folder, "somebody else", kept.ledger) == (left, 0)
    assert (kept.home.folder / "withdrawn" / f"{kept.study}.toml").is_file()


def test_nothing_is_deleted_while_the_site_answers(kept: Kept) -> None:
    for path in (kept.folder / ".lock", kept.ledger.lock_of(kept.study, "h01")):
        with locked(path, "x"), pytest.raises(Busy, match="stop it first"):
            withdraw(kept.home, kept.folder, "Dr North", kept.ledger)
        with locked(path, "x"), pytest.raises(Busy, match="stop it first"):
            forget(kept.home, "", None, kept.ledger)
    assert has_ended(kept.folder)
    assert withdrawal_of(kept.home, kept.study, "h01", kept.ledger) is None


def test_an_ended_study_is_forgotten_and_its_budget_stays_used(kept: Kept) -> None:
    before = Audit(kept.home.folder).head[0]
    used = kept.ledger.used(kept.home.approval_of(kept.folder).data)
    os.utime(kept.folder / STATE_FILE, (10**9, 10**9))
    assert when_ended(kept.home, kept.folder, kept.ledger) == "2001-09-09T01:46:40+00:00"
    assert forget(kept.home, "", 10**5, kept.ledger) == []
    (one,) = forget(kept.home, "", 30, kept.ledger)
    assert (one.name, one.ended[:10], one.files >= 5) == ("patients", "2001-09-09", True)
    assert not list((kept.home.folder / "studies").iterdir())
    assert not (kept.home.folder / ".forgotten").exists()
    audit = Audit(kept.home.folder)
    assert audit.head[0] == before + 1
    assert STATE_FILE in audit.lines[-1]["deleted"]
    found = record(kept.home, "patients", Ledger(kept.ledger.folder))
    assert found["study"]["state"] == "forgotten"
    assert found["approval"]["rules"] == {"least_cell": "forgotten"}
    assert found["approval"]["digests"]["study"] == kept.study
    assert found["budget"]["points_of_these_rows"] == used == 3


def test_what_a_killed_process_leaves_of_a_forgotten_study_goes_with_the_next(kept: Kept) -> None:
    going = kept.home.folder / ".forgotten"
    going.mkdir()
    kept.folder.rename(going / "patients-killed")
    assert forget(kept.home, "", None, kept.ledger) == []
    assert not going.exists()


def test_a_study_that_goes_on_is_not_forgotten(kept: Kept) -> None:
    (kept.folder / STATE_FILE).unlink()
    assert forget(kept.home, "", None, kept.ledger) == []
    with pytest.raises(UserError, match="has not ended for this site: hierfl federate withdraw"):
        forget(kept.home, "patients", None, kept.ledger)
    withdraw(kept.home, kept.folder, "Dr North", kept.ledger)
    assert len(forget(kept.home, "patients", 0, kept.ledger)) == 1


def test_the_record_counts_what_left(kept: Kept) -> None:
    found = record(kept.home, "", kept.ledger)
    assert found["study"] | {"data": 0, "columns": 0} == {
        "name": "patients", "digest": kept.study, "state": "ended", "purpose": "care <b>", "method": "mixed-effects",
        "data": 0, "columns": 0,
    }  # fmt: skip
    rows = {one["kind"]: (one["answers"], one["again"], one["refused"], one["bytes"], one["points"])
            for one in found["left"]}  # fmt: skip
    assert rows == {"prepare": (1, 0, 0, 100, 0), "round": (1, 1, 1, 300, 3)}
    assert found["budget"]["points_of_this_study"] == found["budget"]["points_of_these_rows"] == 3
    assert found["site"]["rows"] == 40
    text = as_markdown(found)
    assert "care \\<b\\>" in text
    assert "Dr \\| North" in text
    assert "6 of 5 rows" in text
    assert json.loads(as_json(found)) == found
    withdraw(kept.home, kept.folder, "Dr South", kept.ledger)
    after = record(kept.home, "patients", kept.ledger)
    assert (after["study"]["state"], after["withdrawn"]["by"]) == ("withdrawn", "Dr South")
    assert "Withdrawn by Dr South" in as_markdown(after)


def test_commands(kept: Kept, hierfl: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    kept.ledger.folder.rename(tmp_path / "state/ledger")
    monkeypatch.setenv("HIERFL_STATE", str(tmp_path / "state"))
    code, text, _ = hierfl("federate", "record", kept.home.folder, "--out", tmp_path / "dpia.md")
    assert (code, text.split()) == (0, [str(tmp_path / "dpia.md"), str(tmp_path / "dpia.json")])
    code, text, _ = hierfl("federate", "withdraw", kept.home.folder, "--study", "patients", "--by", "Dr North")
    assert code == 0
    assert "2 answers have left, of rounds 1 to 1" in text
    assert "effects: searched anew" in text
    assert "the budget of these rows is not given back" in text
    code, _, error = hierfl("federate", "forget", kept.home.folder, "--study", "no such")
    assert (code, error.count("\n")) == (2, 1)
    assert hierfl("federate", "forget", kept.home.folder)[:2][1].startswith("patients, ended on")
    assert "nothing is deleted" in hierfl("federate", "forget", kept.home.folder)[1]


@pytest.mark.parametrize("method", METHODS)
def test_of_every_method_it_can_be_said_what_its_rules_keep(method: str) -> None:
    lines = kept_by_server(load(method), {})
    assert lines
    assert not [line for line in lines if "ask the coordinator" in line]
    assert not FADES.keys() & STAYS.keys()


def test_a_control_variate_and_one_round_stay() -> None:
    assert "c: a mean of what every site has last sent: this site's stays in it" in kept_by_server(load("scaffold"), {})
    assert kept_by_server(load("mixed-effects"), {"one_round": True}) == ["effects: one sum of one round: it stays"]
