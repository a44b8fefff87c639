"""The ledger and the audit file of a home hold each other's heads: what one of them has lost, the other notices."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from hierfl.errors import UserError
from hierfl.experiments.federate.guard.audit import Audit
from hierfl.experiments.federate.guard.epsilon import Spending
from hierfl.experiments.federate.guard.heads import Heads
from hierfl.experiments.federate.guard.ledger import Charge, Ledger


def spent_lines(folder: Path) -> tuple[Path, Path]:
    """A ledger and a home whose audit file has seen two charges, a spending and a row set of it."""
    account, home = folder / "ledger", folder / "home"
    home.mkdir()
    ledger = Ledger(account)
    _ = ledger.secret
    ledger.add_rows({"x": np.arange(9)}, lambda one, other: False)
    for number in (1, 2):
        ledger.charge(Charge("rows", "study", "north", f"round {number}", f"q{number}", 0, f"v{number}", 1), 9)
    spending = asdict(Spending("rows", "study", "north", "round 1", "q1", 1.0, 0.0))
    (account / "epsilon.jsonl").write_text(json.dumps(spending) + "\n")
    Heads(ledger, Audit(home), "key").append({"kind": "round"})
    return account, home


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda account: cut(account / "points.jsonl"), "points.jsonl has 1 lines, and it had 2: it was cut"),
        (lambda account: (account / "points.jsonl").unlink(), "points.jsonl has 0 lines, and it had 2"),
        (lambda account: (account / "epsilon.jsonl").unlink(), "epsilon.jsonl has 0 lines, and it had 1"),
        (lambda account: rewritten(account / "points.jsonl"), "points.jsonl: line 2 is another than it was"),
        (lambda account: shutil.rmtree(account / "rows"), "rows has 0 row sets, and it had 1"),
        (shutil.rmtree, "epsilon.jsonl has 0 lines, and it had 1"),  # likewise of a home on another machine
    ],
)
def test_counts_that_are_lost_are_noticed_until_the_loss_is_accepted(loss: object, words: str, tmp_path: Path) -> None:
    account, home = spent_lines(tmp_path)
    Heads(Ledger(account), Audit(home), "key").check()
    loss(account)
    Heads(Ledger(account), Audit(home), "key").append({"kind": "withdraw"})  # is always possible, and hides nothing
    with pytest.raises(UserError, match=words):
        Heads(Ledger(account), Audit(home), "key").check()
    Heads(Ledger(account), Audit(home), "key").append({"kind": "accepted"}, accept=True)
    Heads(Ledger(account), Audit(home), "key").check()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])


def rewritten(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"points":1', b'"points":0'))


def test_a_withdrawal_does_not_hide_that_the_audit_file_was_cut(tmp_path: Path) -> None:
    account, home = spent_lines(tmp_path)
    (home / "audit.jsonl").write_bytes(b"")
    Heads(Ledger(account), Audit(home), "key").append({"kind": "withdraw"})
    with pytest.raises(UserError, match="line 1 is not the one that this account has seen"):
        Heads(Ledger(account), Audit(home), "key").check()


def test_an_audit_file_of_an_earlier_version_opens_with_any_ledger(tmp_path: Path) -> None:
    Audit(tmp_path).append({"kind": "round"})  # without heads of the ledger
    heads = Heads(Ledger(tmp_path / "ledger"), Audit(tmp_path), "key")
    heads.check()
    heads.append({"kind": "round"})
    assert Audit(tmp_path).spent["points.jsonl"][0] == 0


def test_a_key_of_row_hashes_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    """Another key would recognise no row, and every budget would begin again."""
    account, _ = spent_lines(tmp_path)
    (account / "secret").unlink()
    with pytest.raises(UserError, match="secret is gone, and no row set beside it is recognised without it"):
        _ = Ledger(account).secret
