"""The account's ledger, the audit file and stored replies: what is counted, kept and noticed."""

from __future__ import annotations

import json
import os
import stat
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from hierfl.errors import UserError
from hierfl.experiments.federate.guard.answers import Answers, Slot
from hierfl.experiments.federate.guard.audit import Audit
from hierfl.experiments.federate.guard.claims import AccountClaims
from hierfl.experiments.federate.guard.ledger import AnsweredBefore, Charge, Ledger, OverBudget
from hierfl.inference.engines.remote.refusals import Refused

FIRST = Charge("rows", "study", "north", "round 1", "q1", 0, "v1", 1)


def same(rows: dict, other: dict) -> bool:
    """Whether two sets of one column share most rows of the smaller one."""
    return 2 * len(np.intersect1d(rows["x"], other["x"])) >= min(len(rows["x"]), len(other["x"]))


def asked(number: int, **more: object) -> Charge:
    return replace(FIRST, slot=f"round {number}", question=f"q{number}", values=f"v{number}", **more)


def test_a_question_is_charged_once_and_its_slot_is_taken(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.charge(FIRST, 3) == 1
    assert Ledger(tmp_path).charge(FIRST, 3) == 0
    with pytest.raises(AnsweredBefore, match="round 1 was answered to other values"):
        ledger.charge(replace(FIRST, question="q1-other"), 3)
    assert ledger.used("rows") == 1


def test_a_restart_record_opens_a_slot_once_and_counts(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.charge(FIRST, 9)
    again = replace(FIRST, question="q1-other", values="other", restart=1)
    assert ledger.charge(again, 9) == 1
    for number in (0, 1):  # neither without a record, nor with one that was used
        with pytest.raises(AnsweredBefore):
            ledger.charge(replace(again, question="q1-third", restart=number), 9)
    with pytest.raises(AnsweredBefore):  # a server that has gone back before its record
        ledger.charge(asked(2), 9)
    assert ledger.charge(asked(2, restart=1), 9) == 1
    assert (ledger.used("rows"), ledger.restarts("study", "north")) == (3, 1)


def test_the_budget_is_that_of_the_data_in_all_studies(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.charge(FIRST, 2)
    other = replace(FIRST, study="renamed", client="n")
    assert ledger.charge(other, 2) == 1
    with pytest.raises(OverBudget, match="2 of 2 points are used, and 1 more are asked for"):
        ledger.charge(replace(other, study="third"), 2)
    assert ledger.charge(replace(other, study="third", data="others"), 2) == 1


def test_the_same_broadcast_is_free_where_it_says_nothing_new(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.charge(FIRST, 1)
    same = replace(asked(2), values=FIRST.values)
    assert ledger.charge(same, 1, free=True) == 0
    with pytest.raises(OverBudget):
        ledger.charge(replace(asked(3), values=FIRST.values), 1)


def test_another_cut_of_the_rows_has_the_same_budget(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    whole, part = np.arange(100), np.arange(10, 100)
    whole_id, part_id = (ledger.add_rows({"x": rows}, same) for rows in (whole, part))
    assert whole_id != part_id
    assert ledger.add_rows({"x": whole[::-1].copy()}, same) == whole_id
    assert ledger.budget_of(part_id) == whole_id
    ledger.charge(replace(FIRST, data=whole_id), 5)
    assert Ledger(tmp_path).used(part_id) == 1
    assert ledger.budget_of(ledger.add_rows({"x": np.arange(95, 300)}, same)) not in (whole_id, part_id)


def test_rows_of_two_earlier_sets_use_the_budgets_of_both(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    sets = {"a": np.arange(100), "b": np.arange(1000, 1100)}
    sets["both"] = np.concatenate([sets["a"][:60], sets["b"][:60]])
    names = {key: ledger.add_rows({"x": rows}, same) for key, rows in sets.items()}
    for points, (key, name) in enumerate(names.items(), 1):
        ledger.charge(replace(FIRST, study=key, data=name, points=points), 9)
    fresh = Ledger(tmp_path)
    assert {key: fresh.used(name) for key, name in names.items()} == {"a": 1 + 3, "b": 2 + 3, "both": 1 + 2 + 3}
    # Rows that are not in the ledger yet, as before an approval.
    assert fresh.used_of(fresh.budgets_shared({"x": sets["both"][:-1]}, same)) == 6
    with pytest.raises(OverBudget, match="6 of 6 points are used"):
        fresh.charge(replace(FIRST, study="fourth", data=names["both"]), 6)


def test_the_secret_is_made_once_and_private(tmp_path: Path) -> None:
    secret = Ledger(tmp_path).secret
    assert Ledger(tmp_path).secret == secret
    assert len(secret) == 32
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_half_a_line_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    Ledger(tmp_path).charge(FIRST, 9)
    path = tmp_path / "points.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:40])
    ledger = Ledger(tmp_path)
    assert ledger.used("rows") == 1
    ledger.charge(asked(2), 9)
    assert len([json.loads(line) for line in path.read_bytes().splitlines()]) == 2
    assert Ledger(tmp_path).used("rows") == 2
    path.write_bytes(whole + b"nothing\n" + whole)
    with pytest.raises(UserError, match="damaged: line 2 is none of ours"):
        Ledger(tmp_path).used("rows")


def three_lines(home: Path) -> Audit:
    audit = Audit(home)
    for number in range(3):
        audit.append({"kind": "round", "round": number})
    return audit


def test_an_audit_file_goes_on_and_is_shared(tmp_path: Path) -> None:
    audit = three_lines(tmp_path)
    other = Audit(tmp_path)
    assert other.head == audit.head
    other.append({"kind": "scores"})
    assert audit.append({"kind": "round"})[0] == 5
    assert [line["line"] for line in Audit(tmp_path).lines] == [1, 2, 3, 4, 5]
    path = tmp_path / "audit.jsonl"
    path.write_bytes(path.read_bytes() + b'{"half')
    assert Audit(tmp_path).append({"kind": "round"})[0] == 6
    assert Audit(tmp_path).head[0] == 6


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: [lines[0], lines[2]], "has a gap before line 2"),
        (lambda lines: [lines[1], lines[0], lines[2]], "has a gap before line 1"),
        (lambda lines: [lines[0], lines[1].replace(b'"round":1', b'"round":7'), lines[2]], "line 2 was edited"),
        (lambda lines: [lines[0], b"[]\n", lines[2]], "line 2 is none of ours"),
        (lambda lines: lines[:2], "has 2 lines, and this account has seen 3"),
    ],
)
def test_an_audit_file_that_was_changed_is_one_line(change: object, words: str, tmp_path: Path) -> None:
    seen = three_lines(tmp_path).head
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(UserError, match=words):
        Audit(tmp_path).check(seen)


def test_an_audit_file_that_was_written_anew_is_noticed(tmp_path: Path) -> None:
    seen = three_lines(tmp_path).head
    (tmp_path / "audit.jsonl").unlink()
    three_lines(tmp_path).append({"kind": "finish", "round": 3})
    with pytest.raises(UserError, match="line 3 is not the one that this account has seen"):
        Audit(tmp_path).check((3, seen[1][::-1]))


def test_a_ledger_does_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"")
    os.symlink(tmp_path / "elsewhere", tmp_path / "points.jsonl")
    with pytest.raises(UserError, match="symbolic link"):
        Ledger(tmp_path).charge(FIRST, 9)


def test_stored_replies_are_those_of_their_question(tmp_path: Path) -> None:
    answers = Answers(tmp_path)
    round_slot, scores_slot = Slot("round", 1), Slot("scores", 1, "train 0")
    answers.store(round_slot, "a" * 64, b"first")
    answers.store(scores_slot, "a" * 64, b"second")
    assert (answers.stored(round_slot, "a" * 64), answers.stored(scores_slot, "a" * 64)) == (b"first", b"second")
    assert answers.stored(round_slot, "b" * 64) is None
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in (tmp_path / "answers").iterdir())
    answers.forget(2)
    assert answers.stored(round_slot, "a" * 64) is None


def test_row_sets_are_read_one_at_a_time(tmp_path: Path) -> None:
    """A damaged file is noticed by whoever looks at it."""
    ledger = Ledger(tmp_path)
    first, second = (ledger.add_rows({"x": np.arange(k, k + 9)}, same) for k in (0, 100))
    ledger.row_sets().path_of(second).write_bytes(b"damaged")
    assert sorted(ledger.row_sets()) == sorted((first, second))
    assert ledger.row_sets()[first]["x"].tolist() == list(range(9))
    with pytest.raises(UserError, match="is damaged"):
        ledger.row_sets()[second]
    assert ledger.row_sets().get("none", {}) == {}


def test_a_long_ledger_costs_a_request_no_more(tmp_path: Path) -> None:
    """Requests look at their own study's lines, and at one number for each row set."""
    with open(tmp_path / "points.jsonl", "w") as file:
        for k in range(20_000):
            line = {**asdict(FIRST), "data": f"rows{k % 7}", "study": f"study{k // 50}", "question": str(k), "when": ""}
            file.write(json.dumps(line) + "\n")
    ledger = Ledger(tmp_path)
    assert ledger.used("rows3") == 20_000 // 7
    start = time.process_time()
    for k in range(300):
        ledger.used("rows3")
        ledger.has("study", "north", "round 1", str(k))
        ledger.restarts("study", "north")
    assert time.process_time() - start < 1.0  # 0.02; it was 4 seconds where all lines were looked at


def test_a_mask_covers_one_message_whatever_home_it_is_asked_in(tmp_path: Path) -> None:
    """The account knows what a copy of a home does not; it keeps keyed digests, and no message."""
    used = AccountClaims(Ledger(tmp_path), "study", "north")
    used.claim("mask 1", "ab" * 32)
    used.claim("mask 2", "ab" * 32)
    for again in (used, AccountClaims(Ledger(tmp_path), "study", "north")):
        again.claim("mask 1", "ab" * 32)
        with pytest.raises(Refused, match="another value is on record for mask") as error:
            again.claim("mask 1", "cd" * 32)
        assert error.value.refused == "answered"
    AccountClaims(Ledger(tmp_path), "study", "south").claim("mask 1", "cd" * 32)
    text = used.path.read_bytes()
    assert text.count(b"\n") == 2
    assert b"abab" not in text
    assert stat.S_IMODE(used.path.stat().st_mode) == 0o600
    used.path.write_text('{"what": "mask 3"}\n')
    with pytest.raises(UserError, match="is damaged: a line lacks 'value'"):
        AccountClaims(Ledger(tmp_path), "study", "north").claim("mask 1", "cd" * 32)
