"""Tables of what noise costs networks are those of the committed results; settings are the best candidates."""

from __future__ import annotations

import pandas as pd
import pytest
from support.paths import ROOT
from support.privacy_networks import budgets
from support.privacy_settings import CANDIDATES, TRIED, chosen
from support.privacy_tables import TABLES, results

PAGE = (ROOT / "docs" / "privacy-networks.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("title", TABLES)
def test_a_table_has_the_numbers_of_the_results(title: str) -> None:
    table = TABLES[title]()
    assert len(table.splitlines()) > 6
    assert table in PAGE


@pytest.mark.parametrize(("part", "clients"), [("digits", {20, 200}), ("fashion-mnist", {1000})])
def test_results_are_of_every_case(part: str, clients: set[int]) -> None:
    table = results(part)
    cases = set(table[["clients", "method", "unit", "epsilon"]].itertuples(index=False, name=None))
    assert set(table.clients) == clients
    for method in ("fedavg", "pfedvem"):
        for count in clients:
            assert (count, method, "none", "none") in cases
            wanted = {(count, method, unit, e) for unit in ("site", "client") for e, _ in budgets(unit)}
            assert wanted <= cases
    private = table[table.epsilon.isin(["8", "4", "1"])]
    assert (private.spent <= private.epsilon.astype(float)).all()
    assert (table.seeds >= 2).all()


def test_the_attack_finds_no_more_than_epsilon_allows() -> None:
    attack = results("membership").dropna(subset=["auc_best"])
    assert set(map(tuple, attack[["rows", "epsilon"]].to_numpy())) == {(600, e) for e in "841"}
    assert (attack.auc < attack.auc_best + 3 * attack.auc_se).all()
    assert (attack.auc_best < attack.auc_bound).all()


def test_candidates_were_tried_and_the_best_is_used() -> None:
    """Of each case, by accuracy on a part of the training images."""
    table = pd.read_csv(TRIED)
    assert len(table) == sum(map(len, CANDIDATES.values()))
    for case, candidates in CANDIDATES.items():
        rows = table[table[["method", "unit", "clients"]].apply(tuple, axis=1) == case]
        assert chosen(case) in candidates
        assert rows.pm_accuracy.max() == rows.set_index("setting").pm_accuracy[chosen(case).text]
