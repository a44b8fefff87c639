"""Epsilon of an account's data: charged before anything is computed, in all studies together, once for each noise."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.asking import ROUND, prepared
from support.federations import blobs
from support.noisy_study import noisy_place, noisy_study, own_files
from support.studies import FileStudy

from hierfl.data.disclosure.row_hashes import PART, same_data
from hierfl.errors import UserError
from hierfl.experiments.federate.guard.approve import propose
from hierfl.experiments.federate.guard.broadcasts import Broadcasts
from hierfl.experiments.federate.guard.epsilon import EPSILON, ComputedBefore, EpsilonLedger
from hierfl.experiments.federate.guard.ledger import Charge, Ledger, OverBudget
from hierfl.experiments.federate.guard.policy import Policy
from hierfl.experiments.federate.guard.simulated import PERMISSIVE_POLICY
from hierfl.experiments.federate.papers.record import as_markdown, record
from hierfl.experiments.run_folder.dp_lines import dp_lines
from hierfl.inference.noise import Mechanism, Plan
from hierfl.inference.noise.networks import with_noise
from hierfl.inference.options import Options
from hierfl.models import L2GD
from hierfl.nn.networks.build import architecture

PLAN = Plan.for_epsilon("site", 2.0, 1e-6, [Mechanism("sums", 1, 3, most=1)])


def asked(number: int, *, study: str = "s", data: str = "rows", restart: int = 0) -> Charge:
    return Charge(data, study, "h01", f"round {number}", f"question {number} {restart}", restart, "", 1)


def test_a_studys_epsilon_is_charged_once_and_adds_to_others(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    book = EpsilonLedger(ledger)
    for _ in range(2):  # the same question costs nothing more
        assert book.charge(asked(1), PLAN, 3, 5.0, at=0) == pytest.approx(2.0)
    assert book.charge(asked(2), PLAN, 3, 5.0, at=0) == pytest.approx(2.0)
    assert book.spent("rows") == pytest.approx((2.0, 1e-6))
    book.charge(asked(1, study="t"), PLAN, 3, 5.0, at=0)
    assert EpsilonLedger(Ledger(tmp_path)).spent("rows") == pytest.approx((4.0, 2e-6))
    assert book.spent("rows", but=("t", "h01")) == pytest.approx((2.0, 1e-6))
    assert book.spent("other rows") == (0.0, 0.0)
    with pytest.raises(OverBudget, match="epsilon 4 of 5 is spent on these rows, and this study needs 2"):
        book.charge(asked(1, study="u"), PLAN, 3, 5.0, at=0)
    assert book.charge(asked(1, study="u", data="other rows"), PLAN, 3, 5.0, at=0) == pytest.approx(2.0)


def row_set(*parts: range) -> dict[str, np.ndarray]:
    """Hashes of rows by their numbers: two columns, of which one tells rows apart."""
    k = np.concatenate([np.arange(part.start, part.stop) for part in parts])
    return {"age": k * 7919 + 13, "sex": k % 2, PART: np.zeros(len(k), np.int64)}


@pytest.mark.parametrize(
    ("earlier", "later", "counted"),
    [
        ([(range(300),), (range(300, 600),)], (range(600),), [4, 4]),  # two halves, then all
        ([(range(600),)], (range(300),), [4]),
        ([(range(290), range(1000, 1310))], (range(290), range(2000, 2310)), [4]),  # less than half in common
        ([(range(600),)], (range(599, 1199),), [4]),  # one row
        ([(range(600),)], (range(600, 1200),), []),
        ([(range(100),), (range(700, 800),)], (range(50, 650),), [4]),
    ],
)
def test_studies_that_share_rows_add_up(earlier: list, later: tuple, counted: list[int], tmp_path: Path) -> None:
    """However few they share, whichever was first, and before and after the later set is in the ledger."""
    for turn in (1, -1):
        ledger = Ledger(tmp_path / str(turn))
        book = EpsilonLedger(ledger)
        plan = Plan.for_epsilon("site", 4.0, 1e-6, [Mechanism("sums", 1, 1, most=1)])
        for number, parts in enumerate(earlier[::turn]):
            data = ledger.add_rows(row_set(*parts), same_data)
            book.charge(asked(1, study=f"s{number}", data=data), plan, 1, 100.0, at=0)
        hashes = row_set(*later)
        assert book.spent(hashes)[0] == pytest.approx(sum(counted))
        data = ledger.add_rows(hashes, same_data)
        assert book.spent(data)[0] == pytest.approx(sum(counted))
        if counted:
            with pytest.raises(OverBudget, match="is spent on these rows"):
                book.charge(asked(1, study="later", data=data), plan, 1, 4.0, at=0)
        else:
            book.charge(asked(1, study="later", data=data), plan, 1, 4.0, at=0)


def test_rounds_that_are_computed_again_are_a_restarts_and_cost_more(tmp_path: Path) -> None:
    book = EpsilonLedger(Ledger(tmp_path))
    for number in (1, 2, 3):
        book.charge(asked(number), PLAN, 3, 9.0, at=0)
    with pytest.raises(OverBudget, match="the noise plan has 3 rounds"):
        book.charge(asked(4), PLAN, 3, 9.0, at=3)
    more = book.charge(asked(3, restart=1), PLAN, 3, 9.0, at=3)
    assert more == pytest.approx(PLAN.spent({"sums": 4}))
    assert book.spent("rows")[0] == more > 2.0
    with pytest.raises(OverBudget, match="this study needs"):
        book.charge(asked(3, restart=2), PLAN, 3, 2.4, at=3)
    # what is released once in the whole fit is released again, in however many rounds
    once = Plan.for_epsilon("site", 2.0, 1e-6, [Mechanism("statistics", 1, 1)])
    book.charge(asked(1, study="once"), once, 80, 9.0, at=0)
    assert book.charge(asked(1, study="once", restart=1), once, 80, 9.0, at=1) == pytest.approx(
        once.spent({"statistics": 2})
    )


def test_a_round_that_is_computed_again_is_charged_as_the_longest(tmp_path: Path) -> None:
    """L2GD's rounds have random numbers of steps; of a method that does not say, all is released again."""
    federation = blobs([60] * 4)
    options = Options(rounds=40, dp="site", epsilon=4.0, usual_rows=60)
    method: Any = with_noise(options, L2GD(architecture("mlp:5", federation), p=0.3), federation)[0]
    (mechanism,) = method.mechanisms(options)
    (part,) = (part for part in method.parts.values() if part.releases)
    assert mechanism.most == max(part.steps) > 2 * math.ceil(sum(part.steps) / 40)
    unsaid = Plan.for_epsilon("site", 2.0, 1e-6, [Mechanism("sums", 1, 3)])
    uneven = Plan.for_epsilon("site", 2.0, 1e-6, [Mechanism("steps", 1, 80, most=40)])
    book = EpsilonLedger(Ledger(tmp_path))
    for name, plan, expected in (("unsaid", unsaid, {"sums": 6}), ("uneven", uneven, {"steps": 120})):
        book.charge(asked(1, study=name), plan, 100, 90.0, at=0)
        assert book.charge(asked(1, study=name, restart=1), plan, 100, 90.0, at=1) == pytest.approx(
            plan.spent(expected)
        )


def test_lost_noise_is_not_made_again_unasked(tmp_path: Path) -> None:
    """A site whose folder is older than what it has answered: a later round would be made with other noise."""
    book = EpsilonLedger(Ledger(tmp_path))
    for number in (1, 2):
        book.charge(asked(number), PLAN, 3, 9.0, at=number - 1)
        book.answered("s", "h01", f"round {number}")
    with pytest.raises(ComputedBefore, match="lost its noise"):
        book.charge(asked(3), PLAN, 3, 9.0, at=0)
    assert book.charge(asked(3), PLAN, 3, 9.0, at=2) == pytest.approx(2.0)
    again = book.charge(asked(2, restart=1), PLAN, 3, 9.0, at=0)
    assert again == pytest.approx(PLAN.spent({"sums": 4}))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / EPSILON).write_text('{"data": "rows"}\n')
    with pytest.raises(UserError, match=f"{EPSILON} is damaged: a line lacks"):
        EpsilonLedger(Ledger(tmp_path)).spendings()


@pytest.fixture
def file_study(tmp_path: Path) -> FileStudy:
    """A study with noise of three rounds, before its first question."""
    return noisy_place(tmp_path)


@pytest.mark.cpu(6, "studies of four sites")
def test_each_noise_leaves_once(file_study: FileStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked again it is the same bytes, also after a kill; a restored home says no more without a declared restart."""
    monkeypatch.setattr(Broadcasts, "check", lambda self, head, tensors, **how: None)
    server = prepared(file_study)
    shutil.copytree(tmp_path / "h01", tmp_path / "backup")
    values = server.values()

    def killed(*args: object, **more: object) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # as its answer is kept
        patch.setattr(file_study.gates["h01"].answers, "store", killed)
        with pytest.raises(KeyboardInterrupt):
            server.ask(ROUND, values)
    file_study.restart("h01")
    assert server.ask(ROUND, values) == ""
    first, noisy_sums = server.reply, {k: v.clone() for k, v in server.answer[1].items()}
    file_study.restart("h01")
    assert server.ask(ROUND, values) == ""
    assert server.reply == first
    other = {k: v + 0.01 for k, v in values.items()}
    assert server.ask(ROUND, other) == "answered"
    book = EpsilonLedger(file_study.ledger("h01"))
    assert [spending.answered for spending in book.spendings()] == [False, True]
    assert book.spendings()[-1].epsilon == pytest.approx(2.0)
    # the home as it was before the round: other noise on the same sum would be a second release
    shutil.rmtree(tmp_path / "h01")
    shutil.copytree(tmp_path / "backup", tmp_path / "h01")
    # The audit file's head on record would tell, too.
    monkeypatch.setattr("hierfl.experiments.federate.guard.audit.Audit.check", lambda self, seen: None)
    file_study.restart("h01")
    assert server.ask(ROUND, values) == "answered"
    # a declared restart is a new release, which is charged
    assert server.ask({**ROUND, "restart": 1}, values) == ""
    assert not all(torch.equal(server.answer[1][name], value) for name, value in noisy_sums.items())
    assert len({spending.question for spending in book.spendings()}) == 2
    for kind in ("scores", "sums", "calibration"):
        head = {"kind": kind, "round": 1, "split": "train", "draws": [0], "final": False, "summary": True, "new": False}
        assert server.ask({**head, "question": {}}, {f"shared|{k}": v for k, v in values.items()}) in (
            "policy",
            "bounds",
        )


@pytest.mark.cpu(6, "studies of four sites")
def test_the_summary_of_a_study_that_was_restarted_is_what_the_ledgers_say(tmp_path: Path) -> None:
    file_study = noisy_place(tmp_path)

    def stops(names: Any) -> None:
        file_study.answers(names)
        if list((tmp_path / "exchange").glob("*/requests/000002-round-*.request")):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        file_study.serve(stops)
    dp = file_study.serve(resume=True, restart=True)["dp"]
    assert dp["again"] == 1
    assert dp["epsilon"] == EpsilonLedger(file_study.ledger("h01")).spendings()[-1].epsilon > 2.01
    assert "1 round was computed once more after restarts" in " ".join(dp_lines({"dp": dp}))


@pytest.mark.cpu(6, "studies of four sites")
def test_first_sums_are_not_answered_and_others_are_refused(file_study: FileStudy) -> None:
    server = prepared(file_study)
    assert server.ask({"kind": "prepare", "round": 0, "step": 0}) == "policy"
    head = {"kind": "hello", "round": 0}
    told = {"0|n": torch.tensor(2000.0, dtype=torch.float64)}
    assert server.ask(head, told) in ("answered", "bounds")


@pytest.mark.parametrize(
    ("policy", "failing", "margin"),
    [
        ({}, set(), "noise inside this site hides a patient of at most 1 row:"),
        ({"noise": True}, set(), "0 of 1000 is spent on these rows, in all studies; this study spends 2"),
        ({"largest_epsilon": 1.0}, {"epsilon"}, "largest_epsilon of policy.toml has to allow it"),
    ],
)
def test_approval_shows_epsilon(policy: dict, failing: set[str], margin: str, tmp_path: Path) -> None:
    file_study = noisy_place(tmp_path)
    home = file_study.home("h01")
    (home.folder / "policy.toml").write_text(replace(PERMISSIVE_POLICY, **policy).text())
    proposal = propose(
        home, file_study.study, None, pins=[file_study.parties.server.card], ledger=file_study.ledger("h01")
    )
    assert set(proposal.failing) == failing
    assert margin in " ".join(rule.margin for rule in proposal.rules)
    assert Policy().largest_epsilon == 4.0


@pytest.mark.cpu(6, "studies of four sites")
def test_two_studies_of_the_same_rows_share_epsilon(tmp_path: Path) -> None:
    files = own_files(tmp_path)
    policy = replace(PERMISSIVE_POLICY, largest_epsilon=3.0)
    first = FileStudy(noisy_study(tmp_path / "first", files), files, tmp_path / "first", policy=policy)
    first.serve()
    study_record = record(first.home("h01"), "noisy", first.ledger("h01"))
    assert study_record["epsilon"] == pytest.approx(
        {"of_this_study": 2, "of_these_rows": 2, "delta_of_these_rows": 1e-5}
    )
    assert "Epsilon: 2 in this study; 2 for these rows" in as_markdown(study_record)
    path = noisy_study(tmp_path / "second", files, delta=1e-6)
    shutil.copytree(tmp_path / "first" / "accounts", tmp_path / "second" / "accounts")
    with pytest.raises(UserError, match="not approved: epsilon"):
        FileStudy(path, files, tmp_path / "second", policy=policy)


def test_a_large_delta_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not approved: delta"):
        noisy_place(tmp_path, delta=0.05)


def test_deltas_of_studies_add_up(tmp_path: Path) -> None:
    """Studies that were approved side by side are compared again with their first round."""
    book, plan = EpsilonLedger(Ledger(tmp_path)), Plan.for_epsilon("site", 0.1, 1e-4, [Mechanism("sums", 1, 1)])
    for number in range(2):
        book.charge(asked(1, study=f"s{number}"), plan, 1, 4.0, at=0, largest_delta=2e-4)
    with pytest.raises(OverBudget, match="delta 0.0002 of 0.0002 is spent on these rows, and this study needs 0.0001"):
        book.charge(asked(1, study="s2"), plan, 1, 4.0, at=0, largest_delta=2e-4)


def test_approval_adds_deltas_of_other_studies(tmp_path: Path) -> None:
    file_study = noisy_place(tmp_path, delta=2e-3)
    home, ledger = file_study.home("h01"), file_study.ledger("h01")
    (data,) = ledger.row_sets()
    EpsilonLedger(ledger).charge(asked(1, data=data), Plan.for_epsilon("site", 1.0, 2e-3, [Mechanism("sums", 1, 1)]), 1,
                                 9.0, at=0)  # fmt: skip
    proposal = propose(home, file_study.study, None, pins=[file_study.parties.server.card], ledger=ledger)
    (rule,) = (rule for rule in proposal.rules if rule.name == "delta")
    assert "0.002 and 0.002 in other studies of them, for each of" in rule.margin
    assert rule.holds is False
