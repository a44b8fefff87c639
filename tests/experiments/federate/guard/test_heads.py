"""The ledger and the audit file of a home hold each other's heads: what one of them has lost, the other notices."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hierfl.errors import UserError
from hierfl.experiments.federate.guard.audit import Audit
from hierfl.experiments.federate.guard.claims import AccountClaims
from hierfl.experiments.federate.guard.epsilon import Spending
from hierfl.experiments.federate.guard.heads import Heads
from hierfl.experiments.federate.guard.ledger import Charge, Ledger
from hierfl.experiments.federate.guard.replies import Replies
from hierfl.experiments.federate.write_keys import write_keys
from hierfl.inference.engines.remote.keys import Identity
from hierfl.inference.engines.remote.sealed import seal_reply


def spent_lines(folder: Path) -> tuple[Path, Path]:
    """A ledger and a home whose audit file has seen two charges, a spending and a row set of it."""
    account, home = folder / "ledger", folder / "home"
    home.mkdir()
    ledger = Ledger(account)
    _ = ledger.secret
    ledger.add_rows({"x": np.arange(9)}, lambda rows, other: False)
    for number in (1, 2):
        ledger.charge(Charge("rows", "study", "north", f"round {number}", f"q{number}", 0, f"v{number}", 1), 9)
    spending = asdict(Spending("rows", "study", "north", "round 1", "q1", 1.0, 0.0))
    (account / "epsilon.jsonl").write_text(json.dumps(spending) + "\n")
    for number in (1, 2):
        AccountClaims(ledger, "study", "north").claim(f"mask {number}", "ab" * 32)
    for kind in ("approval", "round"):
        Heads(ledger, Audit(home), "key").append({"kind": kind})
    return account, home


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda account: cut(account / "points.jsonl"), "points.jsonl has 1 lines, and it had 2: it was cut"),
        (lambda account: (account / "points.jsonl").unlink(), "points.jsonl has 0 lines, and it had 2"),
        (lambda account: (account / "epsilon.jsonl").unlink(), "epsilon.jsonl has 0 lines, and it had 1"),
        (lambda account: rewritten(account / "points.jsonl"), "points.jsonl: line 2 is another than it was"),
        (lambda account: shutil.rmtree(account / "rows"), "rows has 0 row sets, and it had 1"),
        (lambda account: cut(account / "masks" / "study-north.jsonl"), "study-north.jsonl has 1 lines, and it had 2"),
        (lambda account: shutil.rmtree(account / "masks"), "has 0 lines, .* a sum could be asked for again"),
        (lambda account: shutil.rmtree(account / "heads"), "heads has no line about .*an older copy of this home"),
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


@pytest.mark.parametrize("name", ["points.jsonl", "epsilon.jsonl", "masks/study-north.jsonl"])
def test_a_new_home_notices_a_ledger_that_was_cut_and_accepts_for_no_other(name: str, tmp_path: Path) -> None:
    """What other homes have seen is in the ledger itself."""
    account, home = spent_lines(tmp_path)
    (new := tmp_path / "new").mkdir()
    Heads(Ledger(account), Audit(new), "another key").check()
    (account / name).write_bytes(b"")
    with pytest.raises(UserError, match=f"{Path(name).name} has 0 lines, and it had"):
        Heads(Ledger(account), Audit(new), "another key").check()
    Heads(Ledger(account), Audit(new), "another key").append({"kind": "accepted"}, accept=True)
    Heads(Ledger(account), Audit(new), "another key").check()
    with pytest.raises(UserError, match=f"{Path(name).name} has 0 lines, and it had"):
        Heads(Ledger(account), Audit(home), "key").check()


def test_a_ledger_and_an_audit_file_that_are_both_gone_are_noticed(tmp_path: Path) -> None:
    account, home = spent_lines(tmp_path)
    (home / "approvals").mkdir()
    (home / "approvals" / "study.toml").write_text("")
    shutil.rmtree(account)
    (home / "audit.jsonl").unlink()
    with pytest.raises(UserError, match="has no line, and studies were approved here"):
        Heads(Ledger(account), Audit(home), "key").check()


def test_a_line_names_only_what_has_changed_of_the_masks(tmp_path: Path) -> None:
    """An account with a thousand masked studies has no long audit file."""
    account, home = spent_lines(tmp_path)
    Heads(Ledger(account), Audit(home), "key").append({"kind": "round"})
    lines = [line["spent"] for line in Audit(home).lines]
    assert ["masks/study-north.jsonl" in spent for spent in lines] == [True, False, False]
    assert Audit(home).spent["masks/study-north.jsonl"][0] == 2


def test_a_reply_of_another_home_beside_a_lost_ledger_is_noticed(tmp_path: Path) -> None:
    """The exchange folder has what this site has signed."""
    identity, server = Identity.make("north"), Identity.make("coordinator")
    study, head = SimpleNamespace(digest="ab" * 16), {"kind": "round", "round": 1, "study": "ab" * 16}
    (tmp_path / "home").mkdir()
    ledger, audit = Ledger(tmp_path / "ledger"), Audit(tmp_path / "home")
    replies, folder = Replies(identity, audit, ledger), tmp_path / "exchange" / "north" / "replies"
    folder.mkdir(parents=True)
    (folder / "other.reply").write_bytes(b"of nobody")
    for audited, signer in ((audit.head[1], identity), ("cd" * 32, Identity.make("north"))):
        sealed = seal_reply(b"", signer, server.card, head, "q", audit=audited)
        (folder / "000001-round-0123456789abcdef.reply").write_bytes(sealed)
        assert not replies.unknown(study, tmp_path / "exchange")
    sealed = seal_reply(b"", identity, server.card, head, "q", audit="cd" * 32)
    (folder / "000001-round-0123456789abcdef.reply").write_bytes(sealed)
    assert replies.unknown(study, tmp_path / "exchange") == "000001-round-0123456789abcdef.reply"
    ledger.charge(Charge("rows", study.digest, "north", "round 1", "q", 0, "v", 1), 9)
    assert not replies.unknown(study, tmp_path / "exchange")  # a new home of the same account


def test_a_home_whose_key_was_rotated_keeps_what_was_seen_of_it(tmp_path: Path) -> None:
    ledger, home = Ledger(tmp_path / "ledger"), tmp_path / "home"
    old = write_keys(home, "north")
    for kind in ("approval", "round"):
        Heads.of_home(ledger, Audit(home), old).append({"kind": kind})
    new = write_keys(home, "north", rotate=True)
    Heads.of_home(ledger, Audit(home), new).check()
    cut(home / "audit.jsonl")
    with pytest.raises(UserError, match="audit.jsonl has 1 lines, and this account has seen 2"):
        Heads.of_home(ledger, Audit(home), new).check()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])


def rewritten(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"points":1', b'"points":0'))


def test_a_withdrawal_does_not_hide_that_the_audit_file_was_cut(tmp_path: Path) -> None:
    account, home = spent_lines(tmp_path)
    (home / "audit.jsonl").write_bytes(b"")
    for _ in range(2):  # as many lines as before
        Heads(Ledger(account), Audit(home), "key").append({"kind": "withdraw"})
    with pytest.raises(UserError, match="line 2 is not the one that this account has seen"):
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
