"""A site that is killed between any two things that it brings to its disk answers each question once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.asking import ROUND, Server, prepared, study_of_counts
from support.studies import FileStudy

from hierfl.experiments.federate.guard.answers import Answers
from hierfl.experiments.federate.guard.audit import Audit
from hierfl.experiments.federate.guard.broadcasts import Broadcasts
from hierfl.experiments.federate.guard.ledger import Ledger
from hierfl.experiments.federate.guard.seen import Seen
from hierfl.inference.engines.remote.preparation import PreparedSite


@pytest.fixture
def file_study(tmp_path: Path) -> FileStudy:
    """A study of counts at four sites, before its first question."""
    return study_of_counts(tmp_path)


@pytest.fixture
def no_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other broadcasts would be answered with, as far as the ledger lets them."""
    monkeypatch.setattr(Broadcasts, "check", lambda self, head, tensors, **how: None)


class Killed(BaseException):
    """The process ends here."""


#: the moments between what a round brings to the disk, in their order
MOMENTS: list[tuple[Any, str]] = [
    (Ledger, "charge"), (PreparedSite, "answer"), (Broadcasts, "remember"), (Answers, "store"), (Audit, "append"),
    (Seen, "see"),
]  # fmt: skip


@pytest.mark.parametrize("after", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(moment, id=moment[1], marks=[pytest.mark.slow] if moment[1] not in ("charge", "store") else [])
        for moment in MOMENTS
    ],
)
@pytest.mark.usefixtures("no_bounds")
def test_a_site_that_is_killed_at_any_moment_has_answered_once(
    moment: tuple[Any, str], after: bool, file_study: FileStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was on the disk: the same question gets the values that an undisturbed site gives, and no other does."""
    server = prepared(file_study)
    values = server.values()
    cls, name = moment
    true: Callable[..., Any] = getattr(cls, name)

    def killed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if after:
            true(self, *args, **kwargs)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(cls, name, killed)
        with pytest.raises(Killed):
            server.ask(ROUND, values)
    file_study.restart("h01")
    other = {k: v + 0.01 if v.is_floating_point() else v for k, v in values.items()}
    nothing_left = (name, after) == ("charge", False)
    if not nothing_left:
        assert server.ask(ROUND, other) == "answered"
    assert server.ask(ROUND, values) == ""
    answered, reply = server.answer[1], server.reply
    assert server.ask(ROUND, values) == ""
    assert server.reply == reply
    assert server.ask(ROUND, other) == "answered"
    data = file_study.home("h01").approval_of(file_study.site_folder("h01")).data
    assert file_study.ledger("h01").used(data) == 1
    Audit(file_study.home("h01").folder).check(
        Seen(file_study.ledger("h01").folder).last_audit_head(file_study.home("h01").identity.card.fingerprint)
    )
    # what an undisturbed site of the same rows answers
    twin = FileStudy(file_study.study, {"h01": file_study.files["h01"]}, file_study.folder / "twin", file_study.parties)
    for path in ("prepared.safetensors", "told.safetensors"):
        shutil.copy(file_study.site_folder("h01") / path, twin.site_folder("h01") / path)
    twin.restart("h01")
    plain = Server(twin)
    assert plain.ask(ROUND, values) == ""
    assert plain.answer[1].keys() == answered.keys()
    assert all(torch.equal(value, answered[key]) for key, value in plain.answer[1].items())
