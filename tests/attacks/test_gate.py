"""The same attacks on a site with keys, a policy and a gate: what they learn, which is a class and nothing more."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from support.attacks.coordinator import initial
from support.attacks.gated import GatedCoordinator, Hospital, outer
from support.attacks.hospitals import DIGITS, SITES, hospital, table_study
from support.attacks.rows import lone_rows
from support.attacks.thresholds import gram

from hierfl.errors import UserError
from hierfl.experiments.federate.guard import points
from hierfl.experiments.federate.guard.gate import Gate
from hierfl.inference.engines.remote.keys import Identity
from hierfl.inference.engines.remote.sealed import open_reply, question_digest
from hierfl.inference.engines.remote.wire import Unreadable, encode
from hierfl.inference.state import State

HONEST = "y ~ age + sex + (1 | site)"


def approved(
    north: Hospital, folder: Path, formula: str = HONEST, name: str = "s", rows: int = 300
) -> GatedCoordinator:
    """The coordinator of a study of ordinary patients."""
    folder.mkdir(exist_ok=True)
    path = table_study(folder, formula, hospital(rows, lone=False), name=name, test=0.2)
    return north.approved(north.study(path), folder / "north.csv")


@pytest.mark.parametrize(
    "columns",
    [
        "stage", "stage:sex", "where(age > 90, 1, 0)", "maximum(age - 90, 0)", "sign(age - 90)", "floor(age / 91)",
        "exp(20 * (age - 92))", "where(age > 60, 1, 0) + where(age > 61, 1, 0)", "where(center(age) > 25, 1, 0)",
        DIGITS, "exp2(4 * (72 - clip(age, 60, 72)))",
    ],
)  # fmt: skip
def test_a_formula_that_singles_a_patient_out_is_not_approved(columns: str, north: Hospital, tmp_path: Path) -> None:
    """Of patients about whom an ordinary formula may be asked."""
    df = hospital(300)
    df.loc[df.age.isin([60, 61]), "age"] = 62
    df.loc[9, "age"] = 61
    path = table_study(tmp_path, f"y ~ age + sex + {columns} + (1 | site)", df)
    assert north.failing(north.study(path), tmp_path / "north.csv")


def test_an_ordinary_formula_is_approved_and_its_sums_hold_no_row(north: Hospital, tmp_path: Path) -> None:
    site = approved(north, tmp_path, "y ~ age + sex + stage + stage:sex + log(age) + exp(age / 20) + (1 | site)")
    assert site.prepared()
    assert lone_rows(site.totals[1]["gram"].numpy() / 3) == []
    assert not site.refusals


@pytest.mark.parametrize("formula", ["y ~ sex + offset({}) + (1 | site)", "{} ~ sex + (1 | site)"])
def test_digits_are_not_approved_of_offsets_and_responses(formula: str, north: Hospital, tmp_path: Path) -> None:
    path = table_study(tmp_path, formula.format(DIGITS), hospital(300, lone=False), "gaussian")
    assert "digits of a column's sum" in north.failing(north.study(path), tmp_path / "north.csv")


def test_few_patients_are_not_approved(north: Hospital, tmp_path: Path) -> None:
    path = table_study(
        tmp_path, "y ~ age + (1 | site)", hospital(3, lone=False), "gaussian", one_round=True, least_rows=1
    )
    assert {"rows", "columns for each row"} <= set(north.failing(north.study(path), tmp_path / "north.csv"))


def test_totals_are_told_once(north: Hospital, tmp_path: Path) -> None:
    """A threshold that moves with them stays where it was first, through whatever restart records."""
    site = approved(north, tmp_path, "y ~ where(center(age) > 0, 1, 0) + sex + (1 | site)")
    first = site.sums([])
    assert first is not None
    n = float(first["n"]) * 3
    cuts = [65.0, *np.arange(45.5, 85)]
    grams = [gram(site, cut, n) for cut in cuts]
    assert grams[0] is not None
    assert not any(own is not None for own in grams[1:])
    assert set(site.classes()) <= {"answered", "bounds"}


def test_a_threshold_among_few_is_refused(north: Hospital, tmp_path: Path) -> None:
    """By totals whose mean is beyond nearly all patients: the rules are tried again with them."""
    df = hospital(300, lone=False)
    df.loc[df.age > 85, "age"] = 85
    df.loc[:1, "age"] = 89
    path = table_study(tmp_path, "y ~ where(center(age) > 0, 1, 0) + sex + (1 | site)", df, test=0.2)
    site = north.approved(north.study(path), tmp_path / "north.csv")
    assert site.sums([]) is not None
    assert gram(site, 87.5, 15000.0) is None
    assert site.classes() == ["policy"]


@pytest.mark.parametrize(
    ("first", "ahead"),
    [("where(age > {}, 1, 0)", 0.5), ("maximum(age - {}, 0)", 0), ("floor(clip(age, 0, 119) / {})", 1)],
)
def test_two_studies_do_not_differ_by_one_patient(first: str, ahead: float, north: Hospital, tmp_path: Path) -> None:
    """Each by itself keeps all rules; the difference of their sums would be a row."""
    df = hospital(300, lone=False)
    df.loc[df.age.isin([60, 61]), "age"] = 62
    df.loc[9, "age"] = 61
    failing = []
    for cut in (60, 61, 70):
        formula = f"y ~ {first.format(cut + ahead)} + sex + (1 | site)"
        path = north.study(table_study(tmp_path, formula, df, name=f"cut-{cut}", test=0.2))
        failing.append(north.failing(path, tmp_path / "north.csv"))
        if not failing[-1]:
            north.approved(path, tmp_path / "north.csv")
    assert [failing[0], failing[2]] == [[], []]
    assert "rows of earlier studies" in failing[1]
    assert set(failing[1]) <= {"rows of earlier studies", "columns of earlier studies"}


def test_a_threshold_does_not_move_over_one_patient_in_another_study(north: Hospital, tmp_path: Path) -> None:
    df = hospital(300, lone=False)
    df.loc[df.age.isin([60, 61]), "age"] = 62
    df.loc[9, "age"] = 61
    outcomes = []
    for cut in (60.5, 61.5, 70.0):
        formula = "y ~ where(center(age) > 0, 1, 0) + sex + (1 | site)"
        path = table_study(tmp_path, formula, df, name=f"cut-{cut:.0f}", test=0.2)
        site = north.approved(north.study(path), tmp_path / "north.csv")
        assert site.sums([]) is not None
        outcomes.append((gram(site, cut, 1500.0) is not None, site.classes()))
    assert outcomes == [(True, []), (False, ["policy"]), (True, [])]


def moved(site: GatedCoordinator, by: float) -> State:
    """Another point than the one where a fit begins."""
    sent = initial(site.study, site.totals)
    return {**sent, "effects.at": sent["effects.at"] + by}


def test_a_round_is_asked_once(north: Hospital, tmp_path: Path) -> None:
    """The same again has the same answer; other values have none."""
    site = approved(north, tmp_path)
    assert site.prepared()
    assert site.round(1, moved(site, 0.0)) is not None
    first, again = (site.round(2, moved(site, 0.1), counted=1) for _ in range(2))
    assert first is not None
    assert again is not None
    assert all((first[name] == again[name]).all() for name in first)
    assert site.round(2, moved(site, 0.2), counted=1) is None
    assert site.classes() == ["answered"]


def test_restarts_and_studies_of_other_names_share_one_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every point counts, in whichever study, and whatever the server says of having begun again."""
    monkeypatch.setattr(points, "need_of", lambda *_: 1)
    north = Hospital(tmp_path / "north", SITES, budget={"binomial": 6})
    used = []
    for study, restarts in enumerate((4, 8)):
        site = approved(north, tmp_path / str(study), name=f"study-{study}")
        assert site.prepared()
        assert site.round(1, moved(site, 0.0)) is not None
        rounds = [site.round(2, moved(site, 0.1 * k + study), counted=1, restart=k) for k in range(1, restarts)]
        used.append(1 + sum(message is not None for message in rounds))
        assert set(site.classes()) == ({"budget"} if study else set())
    assert used == [4, 2]
    path = north.study(table_study(tmp_path, HONEST, hospital(300, lone=False), name="study-2", test=0.2))
    assert north.failing(path, tmp_path / "north.csv") == ["budget"]


def test_scores_of_training_rows_are_refused(north: Hospital, tmp_path: Path) -> None:
    site = approved(north, tmp_path)
    assert site.prepared()
    sent = initial(site.study, site.totals)
    assert site.round(1, sent) is not None
    shared = {f"shared/{name}": value for name, value in sent.items()}
    assert site.ask("scores", shared, 1, counted=1, split="train", draws=[0], final=False) is None
    assert site.classes() == ["policy"]


def test_whoever_has_not_the_servers_keys_hears_a_class(north: Hospital, tmp_path: Path) -> None:
    """A forged finish, a request to another site, another study, and a changed byte."""
    site = approved(north, tmp_path)
    assert site.prepared()
    sent = {f"shared/{name}": value for name, value in initial(site.study, site.totals).items()}
    head = {"round": 1, "client": "north", "counted": 0, "final": False, "handshake": site.study.handshake.table()}
    finish = encode({**head, "kind": "finish"}, sent)
    true = site.sealed(encode({**head, "kind": "hello"}, {}))
    carried = {
        "plain": finish,
        "another's signature": site.sealed(finish, Identity.make("coordinator")),
        "another site": site.sealed(encode({**head, "client": "south", "kind": "finish"}, sent)),
        "a changed byte": true[:-1] + bytes([true[-1] ^ 1]),
        "cut off": true[:-40],
    }
    for what, request in carried.items():
        assert outer(site.gate.answer(request))["refused"] == "signature", what
    elsewhere = {**head, "kind": "finish", "handshake": {**head["handshake"], "study": "0" * 32}}
    reply = site.gate.answer(site.sealed(encode(elsewhere, sent), study="0" * 32))
    assert outer(reply)["refused"] in ("approval", "signature")
    assert not site.gate.ended


def test_a_carrier_reads_no_number(north: Hospital, tmp_path: Path) -> None:
    site = approved(north, tmp_path)
    own = site.sums([])
    assert own is not None
    reply, plain = site.seen[-1], encode({"kind": "prepare", "round": 0, "client": "north"}, {})
    assert own["total"].numpy().tobytes() not in reply
    with pytest.raises(Unreadable):
        open_reply(
            reply, Identity.make("carrier"), site.gate.home.identity.card, str(outer(reply)["question"]),
            study=site.study.digest,
        )  # fmt: skip
    with pytest.raises(Unreadable):  # nor does it answer another question
        open_reply(
            reply, north.server, site.gate.home.identity.card, question_digest(plain), study=site.study.digest
        )  # fmt: skip


def test_a_renamed_study_a_copied_home_and_a_new_one_have_one_budget(north: Hospital, tmp_path: Path) -> None:
    site = approved(north, tmp_path)
    assert site.prepared()
    assert site.round(1, initial(site.study, site.totals)) is not None
    data = site.gate._approval.data  # type: ignore[union-attr]
    used = north.ledger.used(data)
    assert used >= 1
    renamed = approved(north, tmp_path / "renamed", name="another")
    assert renamed.prepared()
    assert renamed.round(1, initial(renamed.study, renamed.totals)) is not None
    assert north.ledger.used(data) > used
    copied = tmp_path / "copied"
    shutil.copytree(north.home.folder, copied)
    twin = Gate(type(north.home)(copied), copied / site.gate.folder.relative_to(north.home.folder), ledger=north.ledger)
    again = GatedCoordinator(north, twin, site.study)
    again.totals = site.totals
    assert site.round(2, moved(site, 0.1), counted=1) is not None
    assert again.round(2, moved(site, 0.2), counted=1) is None
    assert again.classes() == ["answered"]


@pytest.mark.parametrize("roster", ["one", "sybil", "unpinned"])
def test_a_site_is_not_alone(roster: str, north: Hospital, tmp_path: Path) -> None:
    """A roster of one, one whose other names are one key, and one of strangers."""
    path = table_study(tmp_path, HONEST, hospital(300, lone=False), test=0.2)
    if roster == "one":
        out = north.study(path, clients=["north"])
    else:
        own = north.home.identity.card if roster == "sybil" else Identity.make("south").card
        cards = {name: type(own)(name, own.sign, own.seal).text for name in ("south", "east")}
        if roster == "sybil":
            north.others = {}
        out = north.study(path, keys=cards)
    try:
        rules = north.failing(out, tmp_path / "north.csv")
    except UserError:
        return  # keys that two names share, or that are not those pinned: no study at all
    assert "sites" in rules
