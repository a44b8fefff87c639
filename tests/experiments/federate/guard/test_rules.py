"""The rules of a policy on whole studies: attacks that worked are refused, and honest studies pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.studies import PATIENTS, STAGES, formula_study, written

from hierfl.data.disclosure.row_hashes import row_hashes
from hierfl.experiments.federate.draft import draft
from hierfl.experiments.federate.guard.policy import Policy
from hierfl.experiments.federate.guard.rules import Rule, rules, rules_of_totals
from hierfl.experiments.federate.leaving import leaving
from hierfl.experiments.federate.study import Study
from hierfl.experiments.federate.study_site import read_site_data
from hierfl.inference.state import State

SITES = ("north", "south", "east", "west")


def patients(n: int = 80, seed: int = 0) -> pd.DataFrame:
    """One hospital's."""
    rng, row = np.random.default_rng(seed), np.arange(n)
    age = rng.normal(60, 10, n).clip(20, 99).round(1)
    return pd.DataFrame({"y": rng.normal(size=n).round(3), "age": age, "stage": np.array(STAGES)[row % 4]})


def card(name: str) -> str:
    """A public card."""
    return f"hierfl-key-1 {name} keysof{name}"


def with_keys(study: Study, **others: str) -> Study:
    """The same study with everybody's cards."""
    keys = {name: card(name) for name in ("server", *study.clients)} | others
    return replace(study, table={**study.table, "keys": keys})


KNOWN = {name: card(name) for name in ("server", "north", "south", "east")}


class Earlier(dict):
    """Row sets of earlier studies, as a ledger has them."""

    secret = b"s" * 32

    def row_sets(self) -> Mapping[str, Any]:
        """By name."""
        return self


def tried(
    folder: Path, df: pd.DataFrame, policy: Policy | None = None, allowed: tuple[str, ...] = (),
    ledger: Earlier | None = None, **given: Any,
) -> list[Rule]:  # fmt: skip
    """All rules for north's rows in a study of a formula."""
    folder.mkdir(parents=True, exist_ok=True)
    own = folder / "north.csv"
    df.to_csv(own, index=False)
    study = with_keys(Study.read(formula_study(folder, dict.fromkeys(SITES, own), **given)))
    site = read_site_data(study, own, "north")
    checked = rules(study, site, policy or Policy(), KNOWN, allowed, ledger)
    if ledger is not None:
        ledger[str(len(ledger))] = row_hashes(site, ledger.secret)
    return checked


def broken(checked: list[Rule]) -> set[str]:
    """Names of the rules that do not hold."""
    return {rule.name for rule in checked if not rule.holds}


def test_an_honest_study_passes_and_every_rule_has_a_margin(tmp_path: Path) -> None:
    checked = tried(tmp_path, patients(), settings={"draws": 1000})
    assert broken(checked) == set()
    assert len({rule.name for rule in checked}) == len(checked)
    assert all(rule.margin for rule in checked)


def test_a_stage_of_four_patients_is_refused(tmp_path: Path) -> None:
    """The docs' own example had one; refusals for the site's eyes name the column and the count."""
    df = patients(40).assign(stage=lambda df: np.where(df.index < 4, "IV", "I"))
    checked = tried(tmp_path, df)
    assert "cells of stage" in broken(checked)
    assert any(rule.margin == "all rows: smallest 4, at least 5 rows" for rule in checked)


def test_three_rows_are_refused_by_the_policy_whatever_the_study_says(tmp_path: Path) -> None:
    """Cross-products of three rows are these rows; one_round sends them by themselves."""
    df = pd.DataFrame({"y": [5.1, 7.7, 7.4], "age": [71.0, 45.0, 83.0], "stage": ["I", "I", "II"]})
    checked = tried(tmp_path, df, settings={"one_round": True, "least_rows": 1})
    assert {"rows", "columns for each row", "cells of stage", "single messages"} <= broken(checked)
    one_round = tried(tmp_path / "large", patients(), settings={"one_round": True})
    assert broken(one_round) == {"single messages"}
    assert (
        broken(tried(tmp_path / "own", patients(), Policy(single_messages=True), settings={"one_round": True})) == set()
    )


COUNTED = {**PATIENTS, "y": {"kind": "whole", "least": 0}}
ASKED: list[tuple[dict[str, Any], set[str]]] = [
    ({"forbidden_columns": ("stage",)}, {"columns"}),
    ({"forbidden_families": ("gaussian",)}, {"family"}),
    ({"forbidden_methods": ("mixed-effects",)}, {"method"}),
    ({"forbidden_methods": ("*", "fedavg")}, set()),
    ({"least_sites": 4}, {"sites"}),
    ({"least_rows": 81}, {"rows"}),
    ({"masked": True}, {"masked"}),
    ({"noise": True}, {"noise"}),
]


@pytest.mark.parametrize(("entries", "names"), ASKED, ids=[str(entries) for entries, _ in ASKED])
def test_every_entry_is_in_force(entries: dict[str, Any], names: set[str], tmp_path: Path) -> None:
    assert broken(tried(tmp_path, patients(), Policy(**entries))) == names


def test_other_responses_are_asked_at_points_by_the_sites_word_alone(tmp_path: Path) -> None:
    """What a gaussian model of one level can be asked are functions of X'X, X'y and y'y."""
    df = patients().assign(y=lambda df: df.index % 3)
    given: dict[str, Any] = {"columns": COUNTED, "family": "poisson", "settings": {"draws": 10}}
    both = ("points", "exploration")
    assert broken(tried(tmp_path, df, **given)) == set(both)
    assert broken(tried(tmp_path, df, allowed=("points",), **given)) == {"exploration"}
    assert broken(tried(tmp_path, df, allowed=both, **given)) == set()
    assert broken(tried(tmp_path, df, Policy(points="allow", exploration="allow"), **given)) == set()
    assert broken(tried(tmp_path, df, Policy(exploration="refuse"), both, **given)) == {"exploration"}
    assert broken(tried(tmp_path, df, **{**given, "settings": {"draws": 0}})) == {"points"}
    assert "not answered" in next(r.margin for r in tried(tmp_path, df) if r.name == "scores of training rows")


@pytest.mark.parametrize(
    ("method", "allowed", "names"),
    [
        ("pfedvem", (), {"networks"}),
        ("pfedvem", ("networks",), set()),
        ("fedproto", ("networks",), {"label counts"}),
        ("fedproto", ("networks", "label-counts"), set()),
        ("pfedhb", ("networks",), {"label counts"}),
        ("local", (), set()),
        ("pfedv", ("networks", "label-counts"), set()),  # its network has latent features
    ],
)
def test_networks_need_a_word(method: str, allowed: tuple[str, ...], names: set[str], tmp_path: Path) -> None:
    own = tmp_path / "north.csv"
    patients(200).to_csv(own, index=False)
    text = draft(method, own, SITES, "trial", {"network": "mlp:4"}, {}, y="stage", out=tmp_path / "study.toml")
    study = with_keys(Study.read(written(tmp_path, text, PATIENTS)))
    rows = read_site_data(study, own, "north")
    assert broken(rules(study, rows, Policy(), KNOWN, allowed)) == names
    assert leaving(study, rows)


def test_a_roster_that_is_not_what_was_pinned(tmp_path: Path) -> None:
    """One site alone, one card under two names, the server's card as a site's, and keys that nobody has pinned."""
    own = tmp_path / "north.csv"
    patients().to_csv(own, index=False)
    study = Study.read(formula_study(tmp_path, dict.fromkeys(SITES, own)))
    site = read_site_data(study, own, "north")

    def holds(study: Study, known: Mapping[str, str] = KNOWN) -> bool:
        (rule,) = [rule for rule in rules(study, site, Policy(), known) if rule.name == "sites"]
        return rule.holds

    assert holds(with_keys(study))
    assert not holds(study)
    assert not holds(with_keys(replace(study, table={**study.table, "clients": ["north"]})))
    twice = {**KNOWN, "south": "hierfl-key-1 south keysofnorth"}
    assert not holds(with_keys(study, south=twice["south"]), twice)
    server = {**KNOWN, "south": "hierfl-key-1 south keysofserver"}
    assert not holds(with_keys(study, south=server["south"]), server)
    assert not holds(with_keys(study, south="hierfl-key-1 south others"))


def test_two_studies_that_differ_by_one_patient(tmp_path: Path) -> None:
    """The second is refused under any name; the same rows again are not, nor without five of them."""
    df = patients()
    name = "rows of earlier studies"
    for gone, refused in ((1, True), (4, True), (5, False), (0, False)):
        ledger = Earlier()
        assert broken(tried(tmp_path, df, ledger=ledger)) == set()
        checked = tried(tmp_path / "renamed", df[gone:], ledger=ledger, formula="y ~ age + (1 | site)")
        assert (name in broken(checked)) == refused


def test_made_up_totals_move_no_condition(tmp_path: Path) -> None:
    """Totals of `prepare` are the coordinator's word: two rows and a mean of its choice are refused, and so are totals
    that other sites could have and that single out a patient.
    """
    df = patients()
    folder = tmp_path / "study"
    formula = "y ~ where(center(age) > 0, 1, 0) + stage + (1 | site)"
    assert broken(tried(folder, df, formula=formula)) == set()
    study = Study.read(folder / "study.toml")
    site = read_site_data(study, folder / "north.csv", "north")

    def totals(n: float, mean: float) -> list[Any]:
        centred = mean - 60.0  # the middle of the range
        sums: State = {"n": n, "total": np.array([n * centred]), "square": np.array([n * (centred**2 + 100.0)])}
        return [{name: np.asarray(value, dtype=float) for name, value in sums.items()}]

    oldest = float(df.age.max())
    for n, mean, name in (
        (2.0, oldest - 0.05, "totals, step 1"),
        (4000.0, oldest - 0.05, "condition center ( age ) > 0"),
    ):
        assert broken(rules_of_totals(study, site, Policy(), totals(n, mean))) >= {name}
    assert broken(rules_of_totals(study, site, Policy(), totals(4000.0, 61.0))) == set()


def test_two_centres_between_which_one_patient_lies(tmp_path: Path) -> None:
    """Totals that other sites could have, in two studies: the second is refused once its totals are known."""
    df = patients().assign(age=lambda df: 40.0 + 0.5 * df.index)
    folder, ledger = tmp_path / "study", Earlier()
    formula = "y ~ where(center(age) > 0, 1, 0) + stage + (1 | site)"
    assert broken(tried(folder, df, ledger=ledger, formula=formula)) == set()
    study = Study.read(folder / "study.toml")
    site = read_site_data(study, folder / "north.csv", "north")

    def totals(mean: float) -> list[Any]:
        n, centred = 4000.0, mean - 60.0
        return [{"n": np.array(n), "total": np.array([n * centred]), "square": np.array([n * (centred**2 + 100.0)])}]

    first = totals(60.2)
    assert broken(rules_of_totals(study, site, Policy(), first, ledger)) == set()
    ledger["first"] = row_hashes(site, ledger.secret, first)
    for mean, refused in ((60.2, False), (60.7, True), (62.2, True), (62.7, False)):
        checked = rules_of_totals(study, site, Policy(), totals(mean), Earlier(first=ledger["first"]))
        assert ("rows of earlier studies" in broken(checked)) == refused


def test_honest_totals_keep_all_rules(tmp_path: Path) -> None:
    tables = {name: patients(seed=k) for k, name in enumerate(SITES)}
    study_file = formula_study(tmp_path, dict.fromkeys(SITES, tmp_path / "north.csv"))
    study = Study.read(study_file)
    sites = []
    for name, df in tables.items():
        df.to_csv(tmp_path / f"{name}.csv", index=False)
        sites.append(read_site_data(study, tmp_path / f"{name}.csv", name))
    totals: list[Any] = []
    for _ in range(2):
        site_sums = [site.sums(totals) for site in sites]
        totals.append({name: sum(np.asarray(sums[name]) for sums in site_sums) for name in site_sums[0]})
        for site in sites:
            assert broken(rules_of_totals(study, site, Policy(), totals)) == set()
