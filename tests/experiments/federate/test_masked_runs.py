"""Studies with masked sums that run: the same numbers, whoever is missing, killed or full."""

from __future__ import annotations

import contextlib
import errno
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.masked import mixed, networks, until
from support.paths import ROOT
from support.studies import FORMULA, FileStudy, patients

from hierfl.data.formula.federate import from_formula
from hierfl.errors import UserError
from hierfl.experiments.federate.contributions import COLUMNS, CONTRIBUTIONS, read_status
from hierfl.experiments.federate.dry_run import dry_run
from hierfl.experiments.federate.guard.approve import propose
from hierfl.experiments.federate.guard.claims import AccountClaims
from hierfl.experiments.federate.guard.policy import POLICY
from hierfl.experiments.federate.guard.simulated import PERMISSIVE_POLICY
from hierfl.experiments.federate.study import Study
from hierfl.experiments.run_folder.csv_files import read_frame
from hierfl.experiments.run_folder.summary import read_summary
from hierfl.inference import fit
from hierfl.inference.engines.remote import files
from hierfl.inference.run.checkpoint import load
from hierfl.models import MixedEffects


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "POLL", 0.01)


def kinds(file_study: FileStudy, client: str = "h00") -> Counter[str]:
    """How often a site was asked what."""
    frame = read_frame(file_study.folder / "server" / CONTRIBUTIONS, ("when", "kind", "client"), COLUMNS)
    return Counter(map(str, frame[frame.client == client].kind))


def trips(rounds: int, scores: int, masks: str = "") -> int:
    """Requests by hand to a site of a network's study: hello, first sums, and the end, beside rounds and scores."""
    plain, sums = 3 + rounds + scores, rounds + scores
    more = {"": 0, "whole": 1 + 1, "shares": 1 + 2 * -(-sums // 8) + 2 * sums}  # counts of sites; keys, shares; lists
    return plain + more[masks]


def bits(file_study: FileStudy) -> dict[str, torch.Tensor]:
    """What the server has in the end."""
    return load(file_study.folder / "server" / "checkpoint")[0]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """What the server of a mixed model of three sites has in the end."""
    file_study = mixed(tmp_path_factory.mktemp("undisturbed"), 3, rounds=2)
    file_study.serve()
    return bits(file_study)


def same_shared(file_study: FileStudy, expected: dict[str, torch.Tensor]) -> None:
    """To the bit."""
    state = bits(file_study)
    for name, value in expected.items():
        if name.startswith("shared/"):
            torch.testing.assert_close(state[name], value, rtol=0, atol=0)


@pytest.mark.cpu(5, "four sites agree on keys, and fit a model until it has converged")
def test_four_hospitals_find_what_the_pooled_table_would(tmp_path: Path) -> None:
    """With masks, by files: effects and standard errors; two requests more than without masks."""
    df = patients(7)
    df = df[df.site >= "h03"]  # each stage is at three sites and more
    file_study = mixed(tmp_path / "masked", df=df, rounds=40, formula=FORMULA, evaluate_every=40)
    summary = file_study.serve()
    federation, design = from_formula(df, FORMULA)
    how: dict[str, Any] = {"rounds": 40, "evaluate_every": 40, "dtype": torch.float64, "splits": ("train",), "draws": 2}
    whole = fit(MixedEffects(design, draws=0), federation, progress=False, **how)
    expected, numbers = whole.fitted.method.population_summary(whole.fitted)
    assert expected is not None
    effects = read_frame(tmp_path / "masked" / "server" / "effects.csv", ("effect", "note"))
    assert effects.effect.tolist() == expected.effect.tolist()
    for column in ("estimate", "standard_error"):
        np.testing.assert_allclose(effects[column], expected[column], rtol=1e-8)
    assert summary["log_likelihood"] == pytest.approx(numbers["log_likelihood"], rel=1e-12)
    assert summary["masked"] is True
    asked = kinds(file_study, "h03")
    assert asked.pop("keys") == 1
    assert asked["prepare"] == 3  # one more, of counts of sites
    assert asked["round"] == summary["rounds"]
    assert not {"shares", "sign", "open"} & set(asked)
    assert read_summary(tmp_path / "masked" / "server")["masked"] is True


@pytest.mark.cpu(4, "three sites train a network twice, with masks and without")
def test_a_network_trains_under_masks_as_without(tmp_path: Path) -> None:
    """Rounds may go on without a site: keys and shares once, and a signature and an opening for every sum."""
    file_study, plain = networks(tmp_path / "masked", 3), networks(tmp_path / "plain", 3, masked=False)
    file_study.serve()
    plain.serve()
    for name, value in bits(plain).items():
        if name.startswith("shared/"):
            torch.testing.assert_close(bits(file_study)[name], value, rtol=1e-5, atol=1e-6)
    asked, before = kinds(file_study), kinds(plain)
    opened = asked["round"] + asked["scores"]
    assert {kind: asked[kind] for kind in ("keys", "shares", "sign", "open")} == {
        "keys": 1, "shares": 1, "sign": opened, "open": opened,
    }  # fmt: skip
    assert {kind: n for kind, n in asked.items() if kind not in ("keys", "shares", "sign", "open")} == {
        **before, "prepare": before["prepare"] + 1,
    }  # fmt: skip
    scored = asked["scores"]
    assert (sum(before.values()), sum(asked.values())) == (trips(2, scored), trips(2, scored, "shares"))
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    for mode, words in (("whole", "`quorum` of all sites"), ("shares", "with rounds that go on without a site")):
        (row,) = re.findall(rf"^\| .*{re.escape(words)} \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
        assert list(map(int, row)) == [trips(30, 8), trips(30, 8, mode)]  # two splits, four times


@pytest.mark.cpu(3, "a study of three sites, begun twice")
def test_a_site_that_is_missing_voids_the_sum_and_is_named(
    undisturbed: dict[str, torch.Tensor], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing opens without it; when it is there the study goes on to the same numbers."""
    file_study = mixed(tmp_path, 3, rounds=2)
    with pytest.raises(UserError, match="sites have sent their sums"):
        file_study.serve(lambda names: file_study.answers([name for name in names if name != "h02"]), deadline=0.3)
    assert "from h02" in caplog.text
    assert read_status(tmp_path / "server")["round"] == 0
    file_study.serve(resume=True)
    same_shared(file_study, undisturbed)


def test_a_round_goes_on_without_a_site_where_the_method_can(tmp_path: Path) -> None:
    """One of four is away in round 2: the others' sum opens, and it is back for the end."""
    file_study = networks(tmp_path, rounds=3, evaluate_every=3)

    def answers(names: list[str]) -> None:
        away = list((tmp_path / "exchange" / "h03" / "requests").glob("000002-*"))
        file_study.answers([name for name in names if name != "h03" or not away])

    file_study.serve(answers, deadline=0.5)
    who = read_frame(tmp_path / "server" / "participation.csv")
    assert who[["h00", "h01", "h02"]].to_numpy().tolist() == [[1, 1, 1]] * 3
    assert who["h03"].tolist() == [1, 2, 1]


@pytest.mark.parametrize("shares", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.cpu(5, "two studies of three sites, one of which begins again after each kind of question")
def test_kills_in_the_middle_of_a_question_leave_the_same_bits(
    shares: bool, undisturbed: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """Two sites of three have answered as all are killed: once for each kind of question."""
    made: Callable[..., FileStudy] = networks if shares else mixed
    file_study, expected = made(tmp_path / "killed", 3, rounds=2), undisturbed
    if shares:
        plain = networks(tmp_path / "plain", 3, rounds=2)
        plain.serve()
        expected = bits(plain)
    killed: set[str] = set()

    class Killed(Exception):
        pass

    def answers(names: list[str]) -> None:
        asked = {path.name.split("-")[1] for path in (file_study.folder / "exchange").glob("*/requests/*.request")}
        file_study.answers(names[:2] if (fresh := asked - killed - {"hello", "finish"}) else names)
        if fresh:
            killed.update(fresh)
            for name in file_study.files:
                file_study.restart(name)
            raise Killed

    while True:
        try:
            file_study.serve(answers, resume=bool(killed))
            break
        except Killed:
            continue
    assert killed == {"keys", "prepare", "round"} | ({"shares", "sign", "open"} if shares else {"scores"})
    same_shared(file_study, expected)


def test_a_full_disk_at_a_site_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a mask has covered is on the disk before it leaves, or nothing leaves."""
    file_study = mixed(tmp_path, 3, rounds=1)
    whole, left = AccountClaims.claim, [2]

    def full(self: AccountClaims, what: str, value: str) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(self, what, value)

    monkeypatch.setattr(AccountClaims, "claim", full)

    def answers(names: list[str]) -> None:
        with contextlib.suppress(OSError):
            file_study.answers(names)

    file_study.serve(answers)
    assert left == [0]
    assert read_status(tmp_path / "server")["ended"] == "all rounds are done"


@pytest.mark.cpu(4, "a study of four sites, then of three")
def test_a_roster_that_changes_has_other_masks(tmp_path: Path) -> None:
    file_study = mixed(tmp_path, rounds=3)
    until(file_study, "round", 2)
    text = file_study.study.read_text()
    file_study.study.write_text(text.replace('    "h03",\n', ""))
    left = file_study.gates.pop("h03")
    file_study.parties.sites.pop("h03")
    file_study.parties.put_into(file_study.study)
    for name in ("h00", "h01", "h02"):
        file_study.restart(name)
    proposal = propose(
        file_study.home("h01"),
        file_study.study,
        None,
        pins=[file_study.parties.server.card],
        ledger=file_study.ledger("h01"),
    )
    assert left.client == "h03"
    assert "there: the server gets sums over 3 sites" in next(r.margin for r in proposal.rules if r.name == "masked")
    file_study.serve(resume=True)
    assert kinds(file_study)["keys"] == 2
    who = read_frame(tmp_path / "server" / "participation.csv")
    assert who[["h00", "h01", "h02"]].to_numpy().tolist() == [[1, 1, 1]] * len(who)


def test_a_dry_run_counts_requests_for_masks(tmp_path: Path) -> None:
    trial = dry_run(Study.read(mixed(tmp_path, 3, rounds=2).study))
    assert trial.stopped == ""
    assert trial.masks == 2
    assert any(f"{trial.requests} requests to a site, 2 of them for masks" in line for line in trial.lines())


def test_a_site_that_gives_no_scores_adds_zeros_and_the_others_sum_opens(tmp_path: Path) -> None:
    """And what it is not asked for costs it nothing."""
    file_study = mixed(tmp_path, rounds=1)
    (file_study.home("h01").folder / POLICY).write_text(replace(PERMISSIVE_POLICY, train_scores=False).text())
    file_study.approve("h01")
    file_study.restart("h01")
    file_study.serve()
    metrics = read_frame(tmp_path / "server" / "metrics.csv", ("split",))
    assert metrics.pm_rmse.notna().all()
    points = {}
    for name in ("h00", "h01"):
        charges = file_study.ledger(name).asked(Study.read(file_study.study).digest, name)
        points[name] = sum(charge.points for charge in charges if charge.slot.startswith("scores"))
    assert points["h00"] > points["h01"] == 0
