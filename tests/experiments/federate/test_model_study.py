"""Studies whose method is a plain Pyro model's file: the pooled posterior, and nothing undeclared that leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.model_studies import VISITS, WARDS, model_sites, model_study, visits
from support.studies import FileStudy, write_tables

from hierfl.data.column_federation import column_federation
from hierfl.errors import UserError
from hierfl.experiments import methods
from hierfl.experiments.federate.dry_run import dry_run
from hierfl.experiments.federate.guard.approve import propose
from hierfl.experiments.federate.guard.policy import POLICY
from hierfl.experiments.federate.guard.simulated import PERMISSIVE_POLICY
from hierfl.experiments.federate.leaving import leaving
from hierfl.experiments.federate.papers.memory import kept_by_server
from hierfl.experiments.federate.site_results import predictions, site_run, write_site_results
from hierfl.experiments.federate.study import Study
from hierfl.experiments.federate.study_site import Membership, read_site_data
from hierfl.inference import Run, fit
from hierfl.inference.engines.remote import files
from hierfl.inference.engines.remote.wire import decode
from hierfl.inference.run.checkpoint import load

#: what stays at a site of any plain model
PERSONAL = (b"own.mean", b"own.slope", b"own.root", b"own.draws", b"own.sent", b"own.centring")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "POLL", 0.01)


@pytest.fixture(scope="module")
def finished_study(tmp_path_factory: pytest.TempPathFactory) -> tuple[FileStudy, list[tuple[str, bytes]]]:
    """A study by folder that has ended, and all answers of its sites."""
    file_study, answers = model_sites(tmp_path_factory.mktemp("model")), list[tuple[str, bytes]]()
    file_study.watch = lambda name, request, answer: answers.append((name, answer))
    file_study.serve()
    return file_study, answers


def pooled(study: Study, **how: Any) -> Run:
    """The same model on the table of all sites."""
    df = visits()
    df["ward"] = pd.Categorical(df["ward"], WARDS)
    federation, design = column_federation(df, "site", ["visits", "x", "ward"])
    return fit(study.method(design), federation, progress=False, **{**vars(study.options("cpu")), **how})


def server_has(of: FileStudy) -> dict[str, torch.Tensor]:
    """What the server has in the end."""
    return load(of.folder / "server" / "checkpoint")[0]


@pytest.mark.cpu(9, "a study by folder, and the same fit on a plate")
def test_sites_have_the_posterior_of_the_pooled_table(finished_study: tuple[FileStudy, Any]) -> None:
    """Globals and every site's latents: 1e-9. A site has its own alone."""
    of, _ = finished_study
    run = pooled(Study.read(of.study))
    frame = pd.read_csv(of.folder / "server" / "globals.csv")
    joint = run.fitted.method.joint_posterior(run.fitted)
    np.testing.assert_allclose(frame.iloc[:, 1:], joint.globals_table().iloc[:, 1:], rtol=1e-9)
    assert frame["name"].tolist() == ["beta[0]", "beta[1]", "rate"]
    together = joint.client_table()
    for name in of.files:
        mine = site_run(Membership.read(of.site_folder(name)))
        alone = mine.fitted.method.joint_posterior(mine.fitted).client_table()
        expected = together[together["client"] == name]
        np.testing.assert_allclose(alone.iloc[:, 1:].astype(float), expected.iloc[:, 1:].astype(float), rtol=1e-9)
        assert alone["client"].tolist() == [name]


@pytest.mark.cpu(9, "a study by folder, where it is the first")
def test_only_declared_messages_leave(finished_study: tuple[FileStudy, list[tuple[str, bytes]]]) -> None:
    """Every byte that a site sends: tensors of declared names and shapes; no column, level or personal value."""
    of, answers = finished_study
    study = Study.read(of.study)
    declared = {
        f"posterior|{value.name}": value.shape
        for value in leaving(study, read_site_data(study, of.files["s00"], "s00"))
        if value.request.startswith("round")
    }
    kinds = set()
    for _, answer in answers:
        head, tensors = decode(answer)
        kinds.add(frozenset(tensors))
        assert not tensors or {k: tuple(v.shape) for k, v in tensors.items()} == declared, head
        for word in (*PERSONAL, b"a secret", b"diary", b"visits", b"ward", b"dose"):
            assert word not in answer
    assert kinds == {frozenset(), frozenset(declared)}
    assert len(answers) == 3 * (2 + len(pd.read_csv(of.folder / "server" / "participation.csv")))  # hello, the end


def test_what_leaves_is_said_by_name_shape_and_size(tmp_path: Path) -> None:
    """The page says it in the model's terms; nothing is asked before the first round, and nothing is scored."""
    own = write_tables(visits(), tmp_path / "data")
    study = Study.read(model_study(tmp_path, own))
    values = leaving(study, read_site_data(study, own["s00"], "s00"))
    assert [value.request for value in values if value.name == "splits"] == ["hello"]
    sizes = {value.name: (value.shape, value.nbytes) for value in values if value.name != "splits"}
    scalar = ((), 8)
    assert sizes == {
        **dict.fromkeys(("clients", "joined", "bound", "spread", "noise", "heavy", "centrings"), scalar),
        "linear": ((2,), 16), "precision": ((3,), 24), "heights": ((32,), 256),
    }  # fmt: skip
    assert all(value.meaning and ":" not in value.meaning[:1] and ":mod:" not in value.meaning for value in values)


@pytest.mark.cpu(9, "a study by folder, where it is the first")
def test_a_site_predicts_and_reports_by_itself(finished_study: tuple[FileStudy, Any], tmp_path: Path) -> None:
    """New rows need no response; results are of the site alone."""
    of, _ = finished_study
    member = Membership.read(of.site_folder("s01"))
    run = site_run(member)
    pd.DataFrame({"x": [0.5, -1.0], "ward": ["old", "new"]}).to_csv(tmp_path / "new.csv", index=False)
    predicted = predictions(member, run, tmp_path / "new.csv", 0)
    assert predicted.columns.tolist() == ["mean", "sd", "lower", "upper"]
    assert (predicted["sd"] > 0).all()
    assert len(predictions(member, run, tmp_path / "new.csv", 4)) == 2
    pd.DataFrame({"x": [0.5]}).to_csv(tmp_path / "less.csv", index=False)
    with pytest.raises(UserError, match="lacks column 'ward', which the model reads"):
        predictions(member, run, tmp_path / "less.csv", 0)
    folder = write_site_results(member, run)
    assert pd.read_csv(folder / "clients.csv")["client"].tolist() == ["s01"]


@pytest.mark.cpu(9, "two studies by folder")
def test_masked_sums_are_the_plain_ones(tmp_path: Path) -> None:
    """After one round, to 1e-12."""
    plain, masked = (model_sites(tmp_path / word, rounds=1, masked=word == "masked") for word in ("plain", "masked"))
    for of in (plain, masked):
        of.serve()
    expected, actual = server_has(plain), server_has(masked)
    sums = [name for name in expected if name.startswith("server/") and expected[name].is_floating_point()]
    assert "server/rule_state/posterior/counted.linear" in sums
    for name in sums:
        torch.testing.assert_close(actual[name], expected[name], rtol=1e-12, atol=1e-12, msg=name)


@pytest.mark.cpu(9, "two studies by folder")
def test_a_killed_server_and_site_go_on_to_the_same_bits(finished_study: tuple[FileStudy, Any], tmp_path: Path) -> None:
    of, _ = finished_study
    other, rounds = model_sites(tmp_path), 0

    class Killed(Exception):
        pass

    def answers(names: list[str]) -> None:
        nonlocal rounds
        rounds += 1
        if rounds in (3, 9):
            other.restart("s01")
            raise Killed
        other.answers(names)

    with pytest.raises(Killed):
        other.serve(answers)
    with pytest.raises(Killed):
        other.serve(answers, resume=True)
    other.serve(answers, resume=True)
    for name, value in server_has(of).items():
        assert torch.equal(server_has(other)[name], value), name


def test_a_changed_file_stops(tmp_path: Path) -> None:
    """At the coordinator, and at a site whose approval is of the file as it was; the new one is never run."""
    of = model_sites(tmp_path, rounds=1)
    trap = tmp_path / "EXECUTED"
    changed = f"open({str(trap)!r}, 'w').close()\n{VISITS}"
    for file in (of.study.parent / "visits.py", of.site_folder("s00") / "visits.py"):
        file.write_text(changed)
    with pytest.raises(UserError, match="visits.py has changed since .* was begun"):
        Study.read(of.study)
    with pytest.raises(UserError, match="visits.py has changed since .* was begun"):
        Membership.read(of.site_folder("s00"))
    assert not trap.exists()


def test_an_unknown_file_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's file that came by mail runs where its reader says so, or has approved it."""
    trap = tmp_path / "EXECUTED"
    own = write_tables(visits(), tmp_path / "data")
    path = model_study(tmp_path, own, f"open({str(trap)!r}, 'w').close()\n{VISITS}")
    trap.unlink()
    methods.forget()  # as another command does
    monkeypatch.setattr(methods.trust, "trusted", lambda source: False)
    with pytest.raises(UserError, match="which you have neither named nor run before: read it, then say --trust-code"):
        Study.read(path)
    assert not trap.exists()
    Study.read(path, trust_code=True)
    assert trap.exists()


def test_points_of_an_exploration_count_against_the_budget(tmp_path: Path) -> None:
    """60 rounds, and 13 explorations of 32 points at most: too small a budget is one line with the remedy."""
    of = model_sites(tmp_path)
    home, need = of.home("s00"), 60 + 13 * 32
    about = {"pins": [of.parties.server.card], "ledger": of.ledger("s00")}

    def rule(budget: dict[str, int]) -> Any:
        (home.folder / POLICY).write_text(replace(PERMISSIVE_POLICY, budget=budget).text())
        proposal = propose(home, of.study, of.files["s00"], **about)
        return next(rule for rule in proposal.rules if rule.name == "budget")

    assert rule({"model": need}).holds
    few = rule({"model": need - 1})
    assert not few.holds
    assert few.margin == (
        f"0 of {need - 1} points were evaluated on these rows, in all studies; this study may need {need}: model = "
        f"{need} in [budget] of policy.toml allows it"
    )


@pytest.mark.cpu(9, "a study by folder, where it is the first")
def test_the_ledger_has_the_points_of_every_round(finished_study: tuple[FileStudy, Any]) -> None:
    of, _ = finished_study
    study = Study.read(of.study)
    spent = sum(charge.points for charge in of.ledger("s00").asked(study.digest, "s00"))
    rounds = len(pd.read_csv(of.folder / "server" / "participation.csv"))
    explored = sum(charge.points > 1 for charge in of.ledger("s00").asked(study.digest, "s00"))
    assert explored >= 2
    assert spent == (rounds - explored) + 32 * explored


@pytest.mark.parametrize("word", ["models", "points", "exploration"])
def test_a_policy_that_refuses_is_obeyed(word: str, tmp_path: Path) -> None:
    own = write_tables(visits(), tmp_path / "data")
    of = model_sites(tmp_path / "study")
    home = of.home("s00")
    (home.folder / POLICY).write_text(replace(PERMISSIVE_POLICY, **{word: "refuse"}).text())
    about = {"pins": [of.parties.server.card], "ledger": of.ledger("s00"), "allow": [word]}
    proposal = propose(home, of.study, own["s00"], **about)
    assert word in proposal.failing


def test_a_dry_run_draws_what_is_observed_from_the_model(tmp_path: Path) -> None:
    study = Study.read(model_study(tmp_path, write_tables(visits(), tmp_path / "data")))
    trial = dry_run(study)
    assert trial.stopped == ""
    assert trial.requests == 2 + trial.rounds
    assert trial.points > trial.rounds + 31


def test_what_a_server_keeps_of_a_site_that_leaves(tmp_path: Path) -> None:
    study = Study.read(model_study(tmp_path, write_tables(visits(), tmp_path / "data")))
    (line,) = kept_by_server(study.loaded, study.table["settings"], study.data.design)
    assert line.startswith("posterior: a sum of what every site has last sent: this site's part stays in it")
