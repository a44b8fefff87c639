"""Withdrawing from a study, forgetting it, and the record of what it processed."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from pathlib import Path

import pytest
from support.commands import Call
from support.homes import Kept, kept_home, small_study
from support.once import Once

from hierfl.errors import UserError
from hierfl.experiments.federate.guard.audit import Audit
from hierfl.experiments.federate.guard.home import has_ended
from hierfl.experiments.federate.guard.ledger import Ledger
from hierfl.experiments.federate.guard.withdrawal import withdrawal_of
from hierfl.experiments.federate.guard.withdrawn import gate_of
from hierfl.experiments.federate.papers.forget import forget, when_ended
from hierfl.experiments.federate.papers.memory import FADES, STAYS, kept_by_server
from hierfl.experiments.federate.papers.record import as_json, as_markdown, record
from hierfl.experiments.federate.papers.withdraw import withdraw
from hierfl.experiments.federate.site_results import predictions, site_run
from hierfl.experiments.federate.study import Study
from hierfl.experiments.federate.study_site import Membership
from hierfl.experiments.methods import load
from hierfl.file_lock import Busy, locked
from hierfl.inference.engines.remote.files import requests_in
from hierfl.inference.engines.remote.sealed import open_reply, question_digest, read_request
from hierfl.inference.engines.remote.site_state import STATE_FILE
from hierfl.inference.engines.remote.wire import header
from hierfl.models import METHODS


@pytest.fixture
def kept(tmp_path: Path, once: Once) -> Kept:
    """The home of a site of a study that has ended."""
    return kept_home(tmp_path / "place", once)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_who_withdraws_keeps_no_state_and_has_said_so_in_both_places(kept: Kept) -> None:
    assert withdrawal_of(kept.home, kept.study, "north", kept.ledger) is None
    left, deleted = withdraw(kept.home, kept.folder, "Dr North", kept.ledger)
    assert deleted > 3  # the state, the sums, stored answers
    assert not names(kept.folder) - {"site.toml", "study.toml", "site.log", ".lock"}
    assert withdrawal_of(kept.home, kept.study, "north", kept.ledger) == left
    line = Audit(kept.home.folder).lines[-1]
    assert (line["kind"], line["by"]) == ("withdraw", "Dr North")
    assert {STATE_FILE, "prepared.safetensors", "told.safetensors"} <= set(line["deleted"])
    assert [name for name in line["deleted"] if name.startswith("answers/")]
    assert all(len(digest) == 64 for digest in line["deleted"].values())
    # an older copy of the home, in which nothing of this stands, is out as well
    (kept.home.folder / "withdrawn" / f"{kept.study}.toml").unlink()
    assert withdrawal_of(kept.home, kept.study, "north", kept.ledger) == left
    assert withdraw(kept.home, kept.folder, "somebody else", kept.ledger) == (left, 0)
    assert (kept.home.folder / "withdrawn" / f"{kept.study}.toml").is_file()


def test_nothing_is_deleted_while_the_site_answers(kept: Kept) -> None:
    for path in (kept.folder / ".lock", kept.ledger.lock_of(kept.study, "north")):
        with locked(path, "x"), pytest.raises(Busy, match="stop it first"):
            withdraw(kept.home, kept.folder, "Dr North", kept.ledger)
        with locked(path, "x"), pytest.raises(Busy, match="stop it first"):
            forget(kept.home, "", None, kept.ledger)
    assert has_ended(kept.folder)
    assert withdrawal_of(kept.home, kept.study, "north", kept.ledger) is None


def test_an_ended_study_is_forgotten_and_its_budget_stays_used(kept: Kept) -> None:
    before = Audit(kept.home.folder).head[0]
    used = kept.ledger.used(kept.home.approval_of(kept.folder).data)
    (finish,) = [line for line in Audit(kept.home.folder).lines if line["kind"] == "finish"]
    assert when_ended(kept.home, kept.folder, kept.ledger) == finish["when"]
    assert forget(kept.home, "", 1, kept.ledger) == []
    (forgotten,) = forget(kept.home, "", 0, kept.ledger)
    assert (forgotten.name, forgotten.ended, forgotten.files >= 5) == ("small", finish["when"], True)
    assert not list((kept.home.folder / "studies").iterdir())
    assert not (kept.home.folder / ".forgotten").exists()
    audit = Audit(kept.home.folder)
    assert audit.head[0] == before + 1
    assert STATE_FILE in audit.lines[-1]["deleted"]
    study_record = record(kept.home, "small", Ledger(kept.ledger.folder))
    assert study_record["study"]["state"] == "forgotten"
    assert set(study_record["approval"]["rules"].values()) == {"forgotten"}
    assert study_record["approval"]["digests"]["study"] == kept.study
    assert study_record["budget"]["points_of_these_rows"] == used > 0


def test_what_a_killed_process_leaves_of_a_forgotten_study_goes_with_the_next(kept: Kept) -> None:
    going = kept.home.folder / ".forgotten"
    going.mkdir()
    kept.folder.rename(going / "small-killed")
    assert forget(kept.home, "", None, kept.ledger) == []
    assert not going.exists()


def test_a_study_that_goes_on_is_not_forgotten(kept: Kept) -> None:
    (kept.folder / STATE_FILE).unlink()
    assert forget(kept.home, "", None, kept.ledger) == []
    with pytest.raises(UserError, match="has not ended for this site: hierfl federate withdraw"):
        forget(kept.home, "small", None, kept.ledger)
    withdraw(kept.home, kept.folder, "Dr North", kept.ledger)
    assert len(forget(kept.home, "small", 0, kept.ledger)) == 1


def test_the_record_counts_what_left(kept: Kept) -> None:
    approval = kept.home.approval_of(kept.folder)
    dataclasses.replace(approval, purpose="care <b>", by="Dr | North").write(kept.home.folder)
    study_record, lines = record(kept.home, "", kept.ledger), Audit(kept.home.folder).lines
    study = study_record["study"]
    assert (study["name"], study["digest"], study["state"]) == ("small", kept.study, "ended")
    assert (study["purpose"], study["method"], study["data"]["formula"]) == (
        "care <b>", "mixed-effects", "y ~ x + (1 | site)",
    )  # fmt: skip
    rows = {entry["kind"]: entry for entry in study_record["left"]}
    replies = [line for line in lines if "reply" in line]
    assert sum(entry["answers"] + entry["again"] + entry["refused"] for entry in rows.values()) == len(replies)
    assert rows["round"]["answers"] == 2
    assert rows["round"]["bytes"] == sum(line["bytes"] for line in replies if line["kind"] == "round") > 1000
    points = sum(line["points"] for line in replies)
    assert (
        study_record["budget"]["points_of_this_study"] == study_record["budget"]["points_of_these_rows"] == points > 0
    )
    assert study_record["site"]["rows"] == 40
    cards = {name: card.fingerprint for name, card in kept.home.known().items() if name != "north"}
    assert {entry["name"]: entry["fingerprint"] for entry in study_record["recipients"]} == cards
    assert [entry["receives"] for entry in study_record["recipients"]].count("replies of this site, decrypted") == 1
    text = as_markdown(study_record)
    assert "care \\<b\\>" in text
    assert "Dr \\| North" in text
    for rule in approval.rules:
        assert f"| {rule}" in text
    assert json.loads(as_json(study_record)) == study_record
    withdraw(kept.home, kept.folder, "Dr South", kept.ledger)
    after = record(kept.home, "small", kept.ledger)
    assert (after["study"]["state"], after["withdrawn"]["by"]) == ("withdrawn", "Dr South")
    assert "Withdrawn by Dr South" in as_markdown(after)


def test_who_has_left_refuses_by_a_signed_class_and_is_not_approved_again(
    tmp_path: Path, hierfl: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a study: the server hears it, and goes on with the others where it can."""
    study = small_study(tmp_path)
    home, folder, ledger = study.home("north"), study.site_folder("north"), study.ledger("north")
    digest, asked = Study.read(study.study).digest, list[bytes]()

    def answers(names: list[str]) -> None:
        if "round" in str(requests_in(tmp_path / "exchange", "north")) and not asked:
            asked.extend(path.read_bytes() for path in requests_in(tmp_path / "exchange", "north"))
            withdraw(home, folder, "Dr North", ledger)
        study.answers(names)

    with pytest.raises(UserError, match="north refuses"):  # what needs everybody: sums for the report
        study.serve(answers)
    refused = [line for line in Audit(home.folder).lines if line.get("refused")]
    assert {line["refused"] for line in refused} == {"withdrawn"}
    question = question_digest(read_request(asked[0])[0])

    def reply_header(reply: bytes) -> dict:
        return header(open_reply(reply, study.parties.server, home.identity.card, question, study=digest))

    gate = gate_of(home, folder, ledger)
    assert reply_header(gate.answer(asked[0]))["refused"] == "withdrawn"
    assert not gate.ended
    with pytest.raises(UserError, match="north has left small"):
        study.approve("north")
    assert hierfl("report", home.folder)[2].startswith("error: ")
    assert "has withdrawn from small" in hierfl("report", home.folder)[2]
    shutil.rmtree(home.folder / "withdrawn")  # an older copy of the home
    assert reply_header(gate_of(home, folder, ledger).answer(asked[0]))["refused"] == "withdrawn"
    assert not [path for path in folder.iterdir() if path.suffix == ".safetensors"]
    request, state = tmp_path / "x.request", tmp_path / "state"
    request.write_bytes(asked[0])
    state.mkdir()
    ledger.folder.rename(state / "ledger")
    monkeypatch.setenv("HIERFL_STATE", str(state))
    code, text, _ = hierfl("federate", "respond", request, "--folder", home.folder, "--out", tmp_path / "replies")
    assert (code, "refused (withdrawn)" in text) == (0, True), text


def test_commands(kept: Kept, hierfl: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    kept.ledger.folder.rename(tmp_path / "state/ledger")
    monkeypatch.setenv("HIERFL_STATE", str(tmp_path / "state"))
    code, text, _ = hierfl("federate", "record", kept.home.folder, "--out", tmp_path / "dpia.md")
    assert (code, text.split()) == (0, [str(tmp_path / "dpia.md"), str(tmp_path / "dpia.json")])
    code, text, _ = hierfl("federate", "withdraw", kept.home.folder, "--study", "small", "--by", "Dr North")
    assert code == 0
    assert "answers have left, of rounds 1 to 2" in text
    assert "effects: searched again" in text
    assert "the budget of these rows is not given back" in text
    assert text.splitlines()[-1].startswith("The study has ended.")
    assert gate_of(kept.home, kept.folder, Ledger()).ended  # nobody asks any more: its process does not wait
    assert "withdraw  study" in hierfl("federate", "audit", kept.home.folder)[1].splitlines()[-2]
    code, _, error = hierfl("federate", "forget", kept.home.folder, "--study", "no such")
    assert (code, error.count("\n")) == (2, 1)
    assert hierfl("federate", "forget", kept.home.folder)[:2][1].startswith("small, ended on")
    assert "nothing is deleted" in hierfl("federate", "forget", kept.home.folder)[1]
    for command in (("report", kept.home.folder), ("predict", kept.home.folder, "--data", tmp_path / "x.csv")):
        assert "has no study: none was approved here, or it was forgotten" in hierfl(*command)[2]


def test_a_site_names_new_rows_far_from_its_own(kept: Kept, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    member, path = Membership.read(kept.folder), tmp_path / "new.csv"
    path.write_text("x\n0.5\n400\n")
    with caplog.at_level(logging.WARNING, "hierfl"):
        predictions(member, site_run(member), path, 0)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("column 'x' is 400 in 1 row, ")


@pytest.mark.parametrize("method", METHODS)
def test_of_every_method_it_can_be_said_what_its_rules_keep(method: str) -> None:
    lines = kept_by_server(load(method), {})
    assert lines
    assert not [line for line in lines if "ask the coordinator" in line]
    assert not FADES.keys() & STAYS.keys()


def test_a_control_variate_and_one_round_stay() -> None:
    assert "c: a mean of what every site has last sent: this site's stays in it" in kept_by_server(load("scaffold"), {})
    assert kept_by_server(load("mixed-effects"), {"one_round": True}) == ["effects: one sum of one round: it stays"]
