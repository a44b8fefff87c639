"""A server of a study with masks learns the sums that all have agreed on, and of one site nothing."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Mapping
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.masked import Asked, Coordinator, Seen, Snapshot, is_noise, mixed, rows, until, watched
from support.studies import FileStudy

from hierfl.errors import UserError
from hierfl.experiments.federate.guard.approve import propose
from hierfl.experiments.federate.guard.look import audited
from hierfl.experiments.federate.papers.forget import forget
from hierfl.experiments.federate.papers.withdraw import withdraw
from hierfl.experiments.federate.study import Study
from hierfl.inference.engines.remote.keys import Identity
from hierfl.inference.engines.remote.masks.layout import Layout
from hierfl.inference.engines.remote.masks.parts import Contribution
from hierfl.inference.engines.remote.masks.past import round_digest
from hierfl.inference.engines.remote.masks.signed_keys import Epoch, SiteKeys
from hierfl.inference.engines.remote.questions import Questions
from hierfl.inference.engines.remote.wire import decode, encode


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[FileStudy, list[Seen]]:
    """A mixed model of four sites that has ended, and all that its server has seen."""
    file_study = mixed(tmp_path_factory.mktemp("ended"))
    seen = watched(file_study)
    file_study.serve()
    return file_study, seen


def total(parts: dict[str, np.ndarray], *without: str) -> np.ndarray:
    """The sum of what sites have answered, of all but some."""
    return reduce(add, [row for name, row in parts.items() if name not in without])


def test_alone_an_answer_is_noise_and_so_is_every_sum_but_that_over_all(ended: tuple[FileStudy, list[Seen]]) -> None:
    file_study, seen = ended
    masked = {(head["kind"], head["round"]) for _, head, _, _, answer in seen if "masked" in answer}
    assert {("prepare", 0), ("round", 1), ("scores", 3)} <= masked
    questions = [rows(seen, *about) for about in sorted(masked)]
    for name in file_study.files:
        assert is_noise(np.concatenate([answers[name] for answers in questions]))
        assert is_noise(np.concatenate([total(answers, name) for answers in questions]))
    for answers in questions:
        assert total(answers)[:3].tolist() == [4, 0, 0]  # how many report, have failed, refuse
    assert not is_noise(np.concatenate([total(answers) for answers in questions]))
    # the sum is the one that the sites' files have
    form = {k: (shape, torch.float64) for k, shape in Study.read(file_study.study).data.form([]).items()}
    step = [entry for entry in seen if entry[1].get("step") == 1]  # the first counts sites
    layout = Layout(form, 4)
    sums, _ = layout.read(layout.words.added(rows(step, "prepare").values()))
    plain = [file_study.sites[name].data.site_data.sums([]) for name in file_study.files]
    for name, value in sums.items():
        torch.testing.assert_close(value, torch.as_tensor(sum(own[name] for own in plain)), rtol=1e-12, atol=1e-12)


def test_nothing_else_leaves_that_depends_on_rows(ended: tuple[FileStudy, list[Seen]]) -> None:
    """Headers are alike at all sites but for names and keys; tensors are masked."""
    for _, head, _, reply_head, answer in ended[1]:
        assert set(answer) <= {"masked"}, head["kind"]
        known = {"hello": {"splits", "at"}, "keys": {"epoch", "keys"}}.get(head["kind"], set())
        assert set(reply_head) <= {"round", "client", "masked", *known}, head["kind"]


@pytest.fixture(scope="module")
def second_round(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """A mixed model of four sites, which are asked their second round: the values of the first are known to all."""
    file_study = mixed(tmp_path_factory.mktemp("study") / "round")
    return Snapshot(file_study, until(file_study, "round", 2))


@pytest.fixture
def file_study(second_round: Snapshot) -> FileStudy:
    """That study."""
    return second_round.restored()


@pytest.fixture
def asked(second_round: Snapshot) -> Asked:
    """What its sites are asked."""
    return second_round.asked


def test_two_broadcasts_in_one_round_open_nothing(file_study: FileStudy, asked: Asked) -> None:
    server = Coordinator(file_study)
    answers = {}
    for name, (head, tensors) in asked.items():
        other = {**tensors, "effects.at": tensors["effects.at"] + 0.01 * (name == "h00")}
        answers[name] = server.ask(name, head, other)[1]["masked"].numpy().view(np.uint64)
    assert is_noise(total(answers))
    assert total(answers)[0] > 4


def test_sites_that_began_with_other_sums_have_no_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns that others standardise by made-up sums are nothing, and the sum would be one site's message."""
    file_study = mixed(tmp_path, 3, rounds=1)
    real, seen = Questions.asked, watched(file_study)

    def asked(self: Questions, about: Any, *given: Any, **how: Any) -> Any:
        whole = self.ask

        def lying(requests: Mapping[str, bytes]) -> dict[str, bytes]:
            changed = {}
            for name, plain in requests.items():
                head, tensors = decode(plain)
                scale = 1e30 if head["kind"] == "hello" and name != "h01" else 1.0
                changed[name] = encode(head, {k: v * scale if k.endswith("|gram") else v for k, v in tensors.items()})
            return whole(changed)

        monkeypatch.setattr(self, "ask", lying)
        try:
            return real(self, about, *given, **how)
        finally:
            self.ask = whole

    monkeypatch.setattr(Questions, "asked", asked)
    file_study.serve()
    assert any(head["kind"] == "round" for _, head, *_ in seen)
    assert not {name for name, head, _, _, answer in seen if head["kind"] == "round" and "masked" in answer} - {"h01"}


def test_a_round_is_asked_once_and_a_replay_is_the_same_noise(file_study: FileStudy, asked: Asked) -> None:
    server = Coordinator(file_study)
    head, tensors = asked["h01"]
    first, again = (server.ask("h01", head, tensors)[1]["masked"] for _ in range(2))
    assert torch.equal(first, again)
    moved = {**tensors, "effects.at": tensors["effects.at"] + 0.01}
    assert server.refused("h01", head, moved) == "answered"
    # the others would add zeros
    assert server.refused("h01", {**head, "training": ["h01"]}, tensors) != ""
    assert server.refused("h00", {**asked["h00"][0], "training": ["h01"]}, tensors) != ""


def test_scores_of_the_same_values_are_of_the_same_sites(file_study: FileStudy, asked: Asked) -> None:
    """The difference of a sum over four sites and of one over three would be one site's scores."""
    server = Coordinator(file_study)
    for name, (head, tensors) in asked.items():
        about: dict[str, Any] = {"kind": "scores", "split": "train", "draws": [0], "final": False}
        shared = {f"shared/{key}": value for key, value in tensors.items()}
        assert server.refused(name, head, tensors) == ""
        past = " ".join([*head["masks"]["past"].split(), round_digest(head, tensors)])
        about["masks"] = {**head["masks"], "past": past}
        asked[name] = {k: v for k, v in head.items() if k not in ("adding", "training")} | about, shared
    for name, (head, tensors) in asked.items():
        assert server.refused(name, head, tensors) == ""
        assert server.refused(name, {**head, "adding": ["h00", "h01", "h02"]}, tensors) == "answered"
        assert (
            server.refused(name, {**head, "final": not head["final"], "adding": ["h00", "h01", "h03"]}, tensors) != ""
        )


def test_keys_are_those_that_the_roster_has_signed(tmp_path: Path) -> None:
    """The server carries them, and can make none."""
    file_study = mixed(tmp_path)
    asked, server = until(file_study, "prepare", 0), Coordinator(file_study)
    head, tensors = asked["h00"]
    epoch = Epoch(server.study.digest, "0" * 64, 1, 0)
    forged = SiteKeys(bytes(32), bytes(31) + b"1", (), ()).signed(epoch, Identity.make("h03")).text
    later, _ = server.ask("h03", {"kind": "keys", "round": 0, "counted": 0, "masks": {"epoch": 2, "slots": 0}})
    keys = head["masks"]["keys"]
    for other in (forged, later["keys"], None, keys["h02"]):  # of another epoch, left out, another site's
        table = {**keys, "h03": other} if other else {name: keys[name] for name in ("h00", "h01", "h02")}
        reply_head, answer = server.ask("h00", {**head, "masks": {**head["masks"], "keys": table}}, tensors)
        assert not answer
        assert reply_head.get("refused") == "failed" or "rekey" in reply_head


def test_a_plain_question_is_refused(file_study: FileStudy, asked: Asked) -> None:
    server = Coordinator(file_study)
    for head, tensors in (asked["h01"], ({"kind": "prepare", "round": 0, "step": 0, "counted": 0}, {})):
        bare = {name: value for name, value in head.items() if name != "masks"}
        assert server.refused("h01", bare, tensors) == "policy"
    assert server.refused("h01", {**asked["h01"][0], "kind": "sums", "summary": True, "new": False}) != ""


def test_a_roster_of_strangers_is_not_approved(file_study: FileStudy, tmp_path: Path) -> None:
    """Masks against sites that the server has made up would hide nothing."""
    home, server = file_study.home("h00"), file_study.parties.server.card
    (home.folder / "known.toml").unlink()
    (home.folder / "policy.toml").unlink()
    from hierfl.experiments.federate.guard.policy import write_policy

    write_policy(home.folder)
    proposal = propose(home, file_study.study, file_study.files["h00"], pins=[server], ledger=file_study.ledger("h00"))
    assert "sites" in proposal.failing
    assert "masked" not in proposal.failing


def test_under_another_roster_there_are_other_masks(file_study: FileStudy, asked: Asked) -> None:
    """Who has approved a new roster refuses the old one, and its keys are of no use."""
    server = Coordinator(file_study)
    text = file_study.study.read_text()
    file_study.study.write_text(text.replace('    "h03",\n', ""))
    del file_study.parties.sites["h03"]
    file_study.parties.put_into(file_study.study)
    for name in ("h00", "h01", "h02"):
        file_study.restart(name)
    head, tensors = asked["h01"]
    assert server.refused("h01", head, tensors) == "approval"
    reply_head, answer = Coordinator(file_study).ask("h01", head, tensors)
    assert "masked" not in answer
    assert "rekey" in reply_head or reply_head.get("refused") == "failed"


# -- a home that was restored --------------------------------------------------------------------------------------


def test_no_mask_covers_two_messages_after_a_home_was_restored(
    file_study: FileStudy, asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The account knows what the older copy does not."""
    server = Coordinator(file_study)
    home, kept = file_study.home("h01").folder, tmp_path / "kept"
    shutil.copytree(home, kept)
    head, tensors = asked["h01"]
    first = server.ask("h01", head, tensors)[1]["masked"]
    shutil.rmtree(home)
    shutil.copytree(kept, home)
    with pytest.raises(UserError, match="its folder is an older copy"):
        file_study.restart("h01")
    audited(file_study.home("h01"), "Dr Test", file_study.ledger("h01"))
    file_study.restart("h01")
    assert torch.equal(server.ask("h01", head, tensors)[1]["masked"], first)  # the same message
    shutil.rmtree(file_study.site_folder("h01") / "answers")
    whole = file_study.gates["h01"].site.contribute

    def another(request: bytes) -> Contribution | bytes:
        part = whole(request)
        assert isinstance(part, Contribution)
        return Contribution(part.form, {k: v + 1 for k, v in part.values.items()}, part.reported)

    monkeypatch.setattr(file_study.gates["h01"].site, "contribute", another)
    assert server.refused("h01", head, tensors) == "answered"


@pytest.mark.parametrize("how", ["withdrawn", "ended and forgotten"])
def test_keys_of_masks_are_for_one_user_and_deleted(how: str, file_study: FileStudy) -> None:
    files = {path for path in (file_study.site_folder("h01") / "masks").rglob("*") if path.is_file()}
    assert files
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
    assert stat.S_IMODE((file_study.site_folder("h01") / "masks").stat().st_mode) == 0o700
    folder, ledger = file_study.site_folder("h01"), file_study.ledger("h01")
    if how == "withdrawn":
        withdraw(file_study.home("h01"), folder, "Dr Test", ledger)
    else:
        file_study.serve(resume=True)
        assert not (folder / "masks").exists()
        (folder / "masks").mkdir()
        forget(file_study.home("h01"), "", None, ledger)
    assert not (folder / "masks").exists()


# -- sums over survivors -------------------------------------------------------------------------------------------
