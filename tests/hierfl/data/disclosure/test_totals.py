"""Sums that are said to be of all sites: honest ones pass, and those that no other sites can have do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.study_tables import DICTIONARY, FORMULAS, parts, pooled

from hierfl.data.disclosure.totals import total_rules
from hierfl.data.federated.array_data import ArrayData
from hierfl.data.federated.column_data import ColumnData
from hierfl.data.federated.design import StudyFormula
from hierfl.data.federated.dictionary import Column, Dictionary
from hierfl.data.federated.formula_data import FormulaData, FormulaSite
from hierfl.data.federated.study_data import SiteData
from hierfl.data.formula.row_numbers import RowColumns


def prepared(sites: Sequence[SiteData], steps: int) -> list[dict[str, np.ndarray]]:
    """What an honest server says of them."""
    totals: list[dict[str, np.ndarray]] = []
    for _ in range(steps):
        site_sums = [site.sums(totals) for site in sites]
        totals.append({name: sum(np.asarray(sums[name], float) for sums in site_sums) for name in site_sums[0]})
    return totals


def of_formula(
    formula: str, family: str = "gaussian", more: RowColumns | None = None, dictionary: Dictionary = DICTIONARY,
    df: pd.DataFrame | None = None,
) -> list[FormulaSite]:  # fmt: skip
    """Six sites of a formula."""
    study = FormulaData(StudyFormula(formula, dictionary, family, more or RowColumns()), "trial")
    tables = parts(pooled() if df is None else df).items()
    return [FormulaSite(study, name, dictionary.read(rows, sorted(study.formula.used)), 0) for name, rows in tables]


MORE = [
    ("y ~ age + (1 + age | site/patient)", {"patient": Column("name")}),
    ("y ~ age + (1 | region/site)", {"region": Column("category", ("east", "west"))}),
]


@pytest.mark.parametrize(("formula", "family", "more"), FORMULAS)
def test_honest_totals_pass(formula: str, family: str, more: RowColumns) -> None:
    sites = of_formula(formula, family, more)
    totals = prepared(sites, 2)
    for site in sites:
        for step in (1, 2):
            assert all(rule.holds for rule in total_rules(site, totals[:step], len(sites) - 1, 10))


@pytest.mark.parametrize(("formula", "columns"), MORE)
def test_honest_totals_of_groups_pass(formula: str, columns: dict[str, Column]) -> None:
    df = pooled()
    df = df.assign(patient=[f"p{k % 9}" for k in range(len(df))], region=np.where(df.site < "s3", "east", "west"))
    sites = of_formula(formula, dictionary=Dictionary({**DICTIONARY.columns, **columns}), df=df)
    totals = prepared(sites, 2)
    assert all(rule.holds for site in sites for rule in total_rules(site, totals, len(sites) - 1, 10))


def test_honest_totals_of_networks_pass(tmp_path: Path) -> None:
    """Of tables with a learned standard deviation, of images, and of arrays of a regression."""
    tables = parts(pooled())
    columns = ColumnData(DICTIONARY, ("age", "stage", "year", "smokes"), "y", "trial", "linear", learn_sd="shared")
    images = ArrayData((3, 2, 2), True, 2, "trial", "linear")
    arrays = ArrayData((4,), False, 0, "trial", "linear", learn_sd="shared")
    by_kind: dict[str, list[SiteData]] = {"columns": [], "images": [], "arrays": []}
    rng = np.random.default_rng(0)
    for name, rows in tables.items():
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
        by_kind["columns"].append(columns.site(tmp_path / f"{name}.csv", name))
        x, y = rng.integers(0, 256, (30, 3, 2, 2), dtype=np.uint8), rng.integers(0, 2, 30)
        np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        by_kind["images"].append(images.site(tmp_path / "own.npz", name))
        numbers = rng.normal(size=(30, 4)).astype(np.float32)
        target = numbers.sum(1)
        np.savez(tmp_path / "own.npz", x_train=numbers, y_train=target, x_test=numbers, y_test=target)
        by_kind["arrays"].append(arrays.site(tmp_path / "own.npz", name))
    for sites in by_kind.values():
        totals = prepared(sites, 1)
        assert totals[0]
        assert all(rule.holds for site in sites for rule in total_rules(site, totals, len(sites) - 1, 10))


FORMULA = "y ~ scale(age):sex + stage + year + (1 + age | site)"


def change(step: int, name: str, value: Callable[[Any], Any]) -> Callable[[list[dict[str, np.ndarray]]], None]:
    """One sum, made up."""

    def changed(totals: list[dict[str, np.ndarray]]) -> None:
        totals[step] = {**totals[step], name: np.asarray(value(totals[step][name]), dtype=float)}

    return changed


MADE_UP = [
    (change(0, "n", lambda v: 2.0), "says -"),
    (change(0, "n", lambda v: v + 0.5), "no whole number"),
    (change(0, "n", lambda v: v * np.nan), "not finite"),
    (change(0, "square", lambda v: v * 0 + 1e230), "too large"),
    (change(0, "total", lambda v: v[:1]), "another form"),
    (change(0, "total", lambda v: v + np.array([1e5, 0.0])), "outside of their ranges"),
    (change(0, "total", lambda v: v - np.array([1e5, 0.0])), "outside of their ranges"),
    (change(0, "square", lambda v: v * 0.1), "less than their sums ask for"),
    (change(0, "square", lambda v: v * 50.0), "outside of their ranges"),
    (change(1, "sites", lambda v: 1.0), "they are of 1 site"),
    (change(1, "sites", lambda v: v - 0.5), "they are of 5.5 sites"),
    (change(1, "varying", lambda v: v + 9), "varying counts"),
    (change(1, "informative", lambda v: -v), "informative counts"),
    (change(1, "gram", lambda v: v * 0.1), "gram of the others is of no rows"),
    (change(1, "products", lambda v: v + np.triu(np.ones_like(v))), "products is not symmetric"),
    (change(1, "response.n", lambda v: v + 1), "they differ"),
    (change(1, "response.square", lambda v: v * 0.01), "less than their sums ask for"),
    (change(1, "random.square", lambda v: v * 0.01), "less than their sums ask for"),
]


@pytest.mark.parametrize(("lie", "words"), MADE_UP, ids=[words for _, words in MADE_UP])
def test_made_up_totals_are_refused(lie: Callable[[list[dict[str, np.ndarray]]], None], words: str) -> None:
    sites = of_formula(FORMULA)
    totals = prepared(sites, 2)
    lie(totals)
    rules = total_rules(sites[0], totals, len(sites) - 1, 10)
    assert any(words in rule.margin for rule in rules if not rule.holds), rules


def test_a_roster_of_fewer_rows_than_sites_ask_for_is_refused() -> None:
    """Totals of one site alone are those of no others."""
    sites = of_formula(FORMULA)
    alone = prepared(sites[:1], 1)
    (rule,) = total_rules(sites[0], alone, 5, 10)
    assert not rule.holds
    assert "says 0 rows of the others, who are 5 of at least 10" in rule.margin


def test_totals_of_others_alone_where_a_site_joins_late() -> None:
    sites = of_formula(FORMULA)
    totals = prepared(sites[1:], 2)
    assert all(rule.holds for rule in total_rules(sites[0], totals, 1, 10, included=False))
    change(0, "total", lambda v: v + np.array([1e5, 0.0]))(totals)
    assert not all(rule.holds for rule in total_rules(sites[0], totals, 1, 10, included=False))


def test_totals_that_make_columns_infinite_are_refused() -> None:
    """A mean of the server's choice, at which a logarithm of the site's own rows is none."""
    sites = of_formula("y ~ log(130 + center(year)) + (1 | site)")
    totals = prepared(sites, 2)
    n = float(totals[0]["n"])
    totals[0] = {"n": n, "total": np.array([n * 1000.0]), "square": np.array([n * 2e6])}
    *_, rule = total_rules(sites[0], totals, 5, 10)
    assert not rule.holds
