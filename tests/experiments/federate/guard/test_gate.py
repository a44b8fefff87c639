"""The gate of a site: who asks, each question once, within a budget, whatever moment a process is killed at."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.asking import ROUND, Server, prepared, study_of_counts
from support.parties import Parties
from support.studies import FileStudy

from hierfl.errors import UserError
from hierfl.experiments.federate.guard import in_force, points
from hierfl.experiments.federate.guard.audit import Audit
from hierfl.experiments.federate.guard.broadcasts import Broadcasts
from hierfl.experiments.federate.guard.gate import Gate
from hierfl.experiments.federate.guard.policy import POLICY, Policy
from hierfl.experiments.federate.guard.simulated import PERMISSIVE_POLICY
from hierfl.inference.engines.remote.keys import Identity
from hierfl.inference.engines.remote.wire import header


@pytest.fixture
def file_study(tmp_path: Path) -> FileStudy:
    """A study of counts at four sites, before its first question."""
    return study_of_counts(tmp_path)


@pytest.fixture
def no_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other broadcasts would be answered with, as far as the ledger lets them."""
    monkeypatch.setattr(Broadcasts, "check", lambda self, head, tensors, **how: None)


@pytest.mark.usefixtures("no_bounds")
def test_a_round_is_answered_once(file_study: FileStudy) -> None:
    """The attack of 145 requests for round 1: the second one with other values is refused, by whatever name."""
    server = prepared(file_study)
    values = server.values()
    assert server.ask(ROUND, values) == ""
    first = server.reply
    other = {k: v + 0.01 if k == "effects.at" or v.is_floating_point() else v for k, v in values.items()}
    for head in (ROUND, {**ROUND, "counted": 1}, {**ROUND, "reports": False}, {**ROUND, "restart": 0}):
        assert server.ask(head, other) == "answered"
        assert not server.answer[1]
    assert server.ask(ROUND, values) == ""
    assert server.reply == first
    file_study.restart("h01")
    assert server.ask(ROUND, other) == "answered"
    assert server.ask(ROUND, values) == ""
    assert server.reply == first
    assert file_study.ledger("h01").used(file_study.home("h01").approval_of(file_study.site_folder("h01")).data) == 1


@pytest.mark.usefixtures("no_bounds")
def test_a_restart_record_lets_a_round_be_evaluated_again_and_counts(file_study: FileStudy) -> None:
    server = prepared(file_study)
    values = server.values()
    other = {k: v + 0.01 if v.is_floating_point() else v for k, v in values.items()}
    data = file_study.home("h01").approval_of(file_study.site_folder("h01")).data
    assert server.ask(ROUND, values) == ""
    assert server.ask({**ROUND, "restart": 1}, other) == ""
    assert server.ask({**ROUND, "restart": 1}, values) == "answered"
    assert server.ask({**ROUND, "round": 2}, values) == "answered"  # from before the record
    assert file_study.ledger("h01").used(data) == 2
    for number in (-1, True, 2.5, "2", 2**40):
        assert server.ask({**ROUND, "restart": number}, values) == "bounds"


@pytest.mark.parametrize(
    "head",
    [
        {"kind": "scores", "round": 1, "split": "train", "draws": [0], "final": False},
        {"kind": "sums", "round": 1, "summary": True, "new": False, "final": False},
    ],
)
@pytest.mark.usefixtures("no_bounds")
def test_scores_and_sums_are_answered_once(file_study: FileStudy, head: dict[str, Any]) -> None:
    server = prepared(file_study)
    assert server.ask(ROUND, server.values()) == ""
    values = {f"shared/{k}": v for k, v in server.values().items()}
    assert server.ask(head, values) == ""
    first = server.reply
    other = {k: v + 0.1 if v.is_floating_point() else v for k, v in values.items()}
    assert server.ask(head, other) == "answered"
    assert server.ask(head, values) == ""
    assert server.reply == first


@pytest.mark.usefixtures("no_bounds")
def test_every_evaluated_point_counts_against_the_budget(
    file_study: FileStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one data set: in another study, under another name, and from another home of the same account."""
    monkeypatch.setattr(points, "need_of", lambda *_: 3)
    text = replace(PERMISSIVE_POLICY, budget={"poisson": 3}).text()
    (file_study.home("h01").folder / POLICY).write_text(text)
    file_study.approve("h01")
    file_study.restart("h01")
    server = prepared(file_study)
    values = server.values()
    for number in (1, 2, 3):
        moved = {k: v + 0.01 * number if v.is_floating_point() else v for k, v in values.items()}
        assert server.ask({**ROUND, "round": number}, moved) == ""
    # the same values again are free: a message depends on nothing else
    assert server.ask({**ROUND, "round": 4}, moved) == ""
    assert server.ask({**ROUND, "round": 5}, values) == "budget"
    # a renamed study of the same rows, in a new home with new keys
    renamed = tmp_path / "renamed"
    renamed.mkdir()
    study = renamed / "study.toml"
    study.write_text(file_study.study.read_text().replace('name = "patients"', 'name = "renamed"'))
    other = FileStudy.__new__(FileStudy)
    other.__dict__ |= {
        **file_study.__dict__,
        "study": study,
        "folder": renamed,
        "gates": {},
        "parties": Parties.of(file_study.files),
    }
    other.parties.put_into(study)
    other.ledger = file_study.ledger  # type: ignore[method-assign]
    other.policy = replace(PERMISSIVE_POLICY, budget={"poisson": 3})
    with pytest.raises(UserError, match="not approved: budget"):
        other.restart("h01")


def test_made_up_totals_are_refused_and_the_first_ones_stay(file_study: FileStudy) -> None:
    """The attack that moves a threshold: sums over all sites are checked, and are those that were told first."""
    server, alone = Server(file_study), Server(file_study, "h02")
    for connection in (server, alone):
        assert connection.ask({"kind": "prepare", "round": 0, "step": 0}) == ""
    own = {f"0|{k}": v for k, v in alone.answer[1].items()}
    assert alone.ask({"kind": "prepare", "round": 0, "step": 1}, own) == "bounds"
    whole: dict[str, torch.Tensor] = {}
    for name in file_study.files:
        other = Server(file_study, name)
        assert other.ask({"kind": "prepare", "round": 0, "step": 0}) == ""
        whole = {k: v + whole.get(k, 0) for k, v in other.answer[1].items()}
    totals = {f"0|{k}": v for k, v in whole.items()}
    assert server.ask({"kind": "prepare", "round": 0, "step": 1}, totals) == ""
    first = server.reply
    assert alone.ask({"kind": "prepare", "round": 0, "step": 1}, totals) == "answered"  # refused ones stay, too
    moved = {**totals, "0|total": totals["0|total"] + 1.0}
    assert server.ask({"kind": "prepare", "round": 0, "step": 1}, moved) == "answered"
    assert server.ask({"kind": "prepare", "round": 0, "step": 1}, totals) == ""
    assert server.reply == first
    file_study.restart("h01")
    assert server.ask({"kind": "prepare", "round": 0, "step": 1}, moved) == "answered"
    assert server.ask({"kind": "hello", "round": 0}, moved) == "answered"


def test_only_the_pinned_server_is_answered(file_study: FileStudy) -> None:
    """A forged finish, a request of another key, and the true server's, cut or changed."""
    server = prepared(file_study)
    site = file_study.gates["h01"]
    for identity in (Identity.make("coordinator"), file_study.parties.sites["h02"]):
        forged = server.sealed({"kind": "finish", "round": 1, "final": True}, server.values(), identity=identity)
        assert header(site.answer(forged))["refused"] == "signature"
    assert not site.ended
    request = server.sealed(ROUND, server.values())
    changed = request[:-1] + bytes([request[-1] ^ 1])
    assert header(site.answer(changed))["refused"] == "signature"
    with_zip = header(request)
    assert with_zip["client"] == "h01"
    elsewhere = file_study.gates["h02"].answer(request)
    assert header(elsewhere)["refused"] == "signature"
    assert header(site.answer(request))["refused"] == ""


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (lambda home: next((home / "approvals").iterdir()).unlink(), "approval"),
        (lambda home: (home / POLICY).write_text(Policy().text()), "approval"),
        (lambda home: (home / "known.toml").write_text(""), "approval"),
    ],
    ids=["no approval", "another policy", "nobody pinned"],
)
def test_what_is_not_approved_as_it_is_now_is_not_answered(
    change: Callable[[Path], None], refused: str, file_study: FileStudy
) -> None:
    """While the process runs, and after it was begun anew; an approval puts it right."""
    server = Server(file_study)
    change(file_study.home("h01").folder)
    for _ in range(2):
        assert server.ask({"kind": "prepare", "round": 0, "step": 0}) == refused
        assert set(server.answer[0]) == {"error", "refused", "client", "round"}
        file_study.gates["h01"] = Gate(
            file_study.home("h01"), file_study.site_folder("h01"), ledger=file_study.ledger("h01")
        )
    (file_study.home("h01").folder / POLICY).write_text(PERMISSIVE_POLICY.text())
    file_study.approve("h01")
    assert server.ask({"kind": "prepare", "round": 0, "step": 0}) == ""


def test_other_code_another_roster_and_other_rows_are_refused(
    file_study: FileStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(file_study)
    true = server.study.handshake.table()
    prepare = {"kind": "prepare", "round": 0, "step": 0}
    for name, about in {"code": "version", "method": "version", "torch": "version", "roster": "approval"}.items():
        assert server.ask({**prepare, "handshake": {**true, name: "other"}}) == about
    with monkeypatch.context() as patch:
        patch.setattr(in_force, "code_digest", lambda: "another version")
        assert server.ask(prepare) == "approval"
    path = file_study.files["h01"]
    text = path.read_text()
    path.write_text("\n".join(text.splitlines()[:-1]) + "\n")
    file_study.gates["h01"] = Gate(
        file_study.home("h01"), file_study.site_folder("h01"), ledger=file_study.ledger("h01")
    )
    assert server.ask(prepare) == "data"
    path.write_text(text)
    file_study.restart("h01")
    assert server.ask(prepare) == ""


def test_scores_of_training_rows_and_values_that_no_fit_has_are_refused(file_study: FileStudy) -> None:
    (file_study.home("h01").folder / POLICY).write_text(replace(PERMISSIVE_POLICY, train_scores=False).text())
    file_study.approve("h01")
    file_study.restart("h01")
    server = prepared(file_study)
    wild = {k: v + 50.0 if v.is_floating_point() else v for k, v in server.values().items()}
    assert server.ask(ROUND, wild) == "bounds"
    assert server.ask(ROUND, server.values()) == ""
    about = {"kind": "scores", "round": 1, "split": "train", "draws": [0], "final": False}
    assert server.ask(about, {f"shared/{k}": v for k, v in server.values().items()}) == "policy"


def test_an_older_copy_of_a_home_is_noticed(file_study: FileStudy, tmp_path: Path) -> None:
    """A folder that was copied, and asked in both places: the one that has seen less does not begin."""
    shutil.copytree(file_study.home("h01").folder, tmp_path / "copy")
    server = Server(file_study)
    assert server.ask({"kind": "prepare", "round": 0, "step": 0}) == ""
    shutil.rmtree(file_study.home("h01").folder)
    shutil.copytree(tmp_path / "copy", file_study.home("h01").folder)
    with pytest.raises(UserError, match="and this account has seen .*: it was cut, or its folder is an older copy"):
        file_study.restart("h01")


def test_a_whole_study_is_in_the_audit_file_and_leaves_no_old_reply(file_study: FileStudy) -> None:
    file_study.serve()
    lines = Audit(file_study.home("h01").folder).lines
    kinds = [line["kind"] for line in lines]
    assert (kinds[0], kinds[-1]) == ("approval", "finish")
    assert not any(line.get("refused") for line in lines)
    assert all(len(line["request"]) == len(line["reply"]) == 64 for line in lines[1:])
    rounds = {int(path.name[:6]) for path in (file_study.site_folder("h01") / "answers").iterdir()}
    assert rounds == {6}
    assert file_study.gates["h01"].ended
    assert Server(file_study).ask({**ROUND, "round": 6}, {}) in ("answered", "bounds")
    charged = [json.loads(line) for line in (file_study.ledger("h01").folder / "points.jsonl").read_text().splitlines()]
    assert sum(line["points"] for line in charged) == sum(line["points"] for line in lines[1:]) > 6
