"""What a header says to masks, and what it says to the site behind them, is one thing, and the same to all sites."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.masked import Asked, Coordinator, Snapshot, mixed, until
from support.masked_sites import Masked, numbers
from support.studies import FileStudy

from hierfl.inference.engines.remote.masks.parts import Mode
from hierfl.inference.engines.remote.masks.past import round_digest
from hierfl.inference.engines.remote.wire import decode, encode, header

VICTIM = "h00"
FIVE = numbers(5)
NAMES = list(FIVE)


@pytest.fixture(scope="module")
def second_round(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """A mixed model of four sites, which are asked their second round."""
    file_study = mixed(tmp_path_factory.mktemp("study") / "round")
    return Snapshot(file_study, until(file_study, "round", 2))


def with_own(asked: Asked, entries: Mapping[str, Mapping[str, Any]]) -> Asked:
    """The same questions, which say more to single sites; all sites are told what it is."""
    own = {name: {"counted": head["counted"], **entries[name]} for name, (head, _) in asked.items()}
    return {
        name: ({**head, **own[name], "masks": {**head["masks"], "own": own}}, tensors)
        for name, (head, tensors) in asked.items()
    }


def scores(file_study: FileStudy, asked: Asked, move: float = 0.0, **about: Any) -> Asked:
    """Questions for scores at moved values, once the round is answered."""
    server, questions = Coordinator(file_study), {}
    for name, (head, tensors) in asked.items():
        assert server.refused(name, head, tensors) == ""
        entries = {k: v for k, v in head.items() if k not in ("adding", "training")}
        entries |= {"kind": "scores", "split": "train", "draws": [0], "final": False, **about}
        past = " ".join([*head["masks"]["past"].split(), round_digest(head, tensors)])
        moved = {f"shared/{k}": v + move * (k == "effects.at") for k, v in tensors.items()}
        questions[name] = {**entries, "masks": {**head["masks"], "past": past}}, moved
    return questions


def answers(file_study: FileStudy, asked: Asked) -> list[str]:
    """Which sites answer with masks."""
    server = Coordinator(file_study)
    return sorted(name for name, (head, tensors) in asked.items() if "masked" in server.ask(name, head, tensors)[1])


def test_sites_are_not_told_apart_who_adds(second_round: Snapshot) -> None:
    """One that is told that all add, and others that nobody does: the sum would be one site's message."""
    file_study, asked = second_round.restored(), second_round.asked
    everyone = sorted(asked)
    only = with_own(asked, {name: {"adding": everyone if name == VICTIM else []} for name in asked})
    assert answers(file_study, only) == []
    file_study = second_round.restored()
    without = {name: {"adding": [other for other in everyone if other != name or other == VICTIM]} for name in everyone}
    assert answers(file_study, with_own(scores(file_study, asked, 1e-3), without)) == []


@pytest.mark.parametrize("more", [{"question": {"about": "test"}}, {"step": 0}, {"training": []}, {"anything": 1}])
def test_an_entry_that_nobody_reads_names_no_other_sum(more: dict[str, Any], second_round: Snapshot) -> None:
    """With it who adds to this kind of sum could be chosen anew, or who is to have a message."""
    file_study, asked = second_round.restored(), second_round.asked
    assert answers(file_study, scores(file_study, asked, 1e-3, **more)) == []


def test_who_adds_to_scores_is_chosen_once_whatever_else_is_said(second_round: Snapshot) -> None:
    file_study, asked = second_round.restored(), second_round.asked
    first, second = (
        scores(file_study, asked, 1e-3),
        scores(file_study, asked, 2e-3, adding=sorted(asked)[1:], final=True),
    )
    assert answers(file_study, first) == sorted(asked)
    assert answers(file_study, second) == []


#: of each kind of question, an entry that another kind has, or none
ENTRIES: list[tuple[str, dict[str, Any]]] = [
    ("prepare", {"adding": []}), ("prepare", {"training": []}), ("prepare", {"final": True}),
    ("round", {"split": "test"}), ("round", {"question": {}}), ("round", {"reports": True}),
    ("scores", {"training": []}), ("scores", {"question": {"about": "test"}}), ("scores", {"masked": True}),
    ("sums", {"adding": []}), ("sums", {"training": []}), ("sums", {"split": "test"}),
    ("calibration", {"training": []}), ("calibration", {"split": "test"}), ("calibration", {"": None}),
]  # fmt: skip


@pytest.mark.parametrize("mode", ["whole", "shares"])
def test_no_site_answers_a_header_with_more_entries(mode: Mode, tmp_path: Path) -> None:
    for entry, (kind, more) in enumerate(ENTRIES):
        masked = Masked(tmp_path / str(entry), FIVE, mode=mode)
        masked.change = lambda name, plain, more=more, kind=kind: (  # type: ignore[misc]
            encode({**header(plain), **more}, decode(plain)[1]) if header(plain)["kind"] == kind else plain
        )
        masked.sum(1, kind)
        replies = [header(answer) for _, answer in masked.rows(kind)]
        assert len(replies) == 5, kind
        assert all(reply.get("refused") for reply in replies), (kind, more)


@pytest.mark.parametrize("entry", ["adding", "training", "split", "round", "kind", "client", "masks", "more"])
def test_single_sites_are_told_nothing_but_what_was_counted(entry: str, tmp_path: Path) -> None:
    masked = Masked(tmp_path, FIVE)

    def change(name: str, plain: bytes) -> bytes:
        head, tensors = decode(plain)
        if head["kind"] != "round":
            return plain
        values = {name: NAMES if name == NAMES[0] else [] for name in NAMES}
        own = {site: {"counted": 0, entry: head.get(entry, values[site])} for site in NAMES}
        return encode({**head, **own[name], "masks": {**head["masks"], "own": own}}, tensors)

    masked.change = change
    assert masked.sum(1) is None
    assert all(header(answer).get("refused") for _, answer in masked.rows())
