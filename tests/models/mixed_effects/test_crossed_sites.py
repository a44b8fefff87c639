"""Sites that share items find, by sums alone, what one table would; rules count an item's rows at a site."""

from __future__ import annotations

from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from support.sites import Sites

from hierfl.data.disclosure.formula_rows import formula_rows
from hierfl.data.federated.design import StudyFormula
from hierfl.data.federated.dictionary import Column, Dictionary
from hierfl.data.federated.formula_data import FormulaData
from hierfl.data.federated.study_reader import study_reader
from hierfl.data.federated.support import check_support, part_names, parts_of
from hierfl.data.formula.federate import from_formula
from hierfl.errors import UserError
from hierfl.inference import fit
from hierfl.models import MixedEffects

FORMULA, ITEMS = "y ~ age + (1 | site) + (1 | item)", ("a", "b", "c", "d")


def answers(*, binary: bool) -> pd.DataFrame:
    """Six sites, of which one has never seen item d."""
    rng = np.random.default_rng(0)
    site = np.repeat(np.arange(6), 30)
    item = np.where((site == 5) & (np.arange(180) % 4 == 3), 0, np.arange(180) % 4)
    age = rng.normal(50, 10, 180).clip(20, 90)
    eta = 0.03 * (age - 50) + rng.normal(0, 0.6, 6)[site] + np.array([-0.8, -0.1, 0.3, 0.9])[item]
    y = rng.random(180) < 1 / (1 + np.exp(-eta)) if binary else eta + rng.normal(size=180)
    return pd.DataFrame({"site": site.astype(str), "item": np.array(ITEMS)[item], "age": age, "y": y.astype(float)})


def study(family: str, levels: tuple[str, ...] = ITEMS) -> StudyFormula:
    outcome = Column("number") if family == "gaussian" else Column("whole", least=0, most=1)
    columns = {"y": outcome, "age": Column("number", least=0, most=120), "item": Column("category", levels)}
    return StudyFormula(FORMULA, Dictionary(columns), family)


def tables(df: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {str(name): rows.drop(columns="site") for name, rows in df.groupby("site")}


@pytest.mark.parametrize("family", ["gaussian", pytest.param("binomial", marks=pytest.mark.slow)])
def test_sites_find_what_the_table_would(family: str, tmp_path: Path) -> None:
    df = answers(binary=family != "gaussian")
    how = {"rounds": 90, "draws": 2, "dtype": torch.float64, "evaluate_every": 90, "splits": ("train",)}
    settings: dict = {"draws": 0}
    federation, design = from_formula(df, FORMULA, family=family)
    whole = fit(MixedEffects(design, **settings), federation, progress=False, **how)

    formula, own_rows = study(family), tables(df)
    reader = study_reader(formula, reduce(add, (formula.first(rows) for rows in own_rows.values())))
    made = reader.design(reduce(add, (reader.second(rows) for rows in own_rows.values())))
    method = MixedEffects(made, **settings)
    own = {name: reader.federation(rows, name) for name, rows in own_rows.items()}
    senders = Sites(method, own["0"], tmp_path, own, **how)
    run = senders.fit()

    effects, numbers = method.population_summary(run.fitted)
    expected, pooled = whole.fitted.method.population_summary(whole.fitted)
    assert effects is not None
    assert expected is not None
    pd.testing.assert_frame_equal(effects, expected, rtol=1e-6)
    assert numbers["log_likelihood"] == pytest.approx(pooled["log_likelihood"], rel=1e-10)
    torch.testing.assert_close(run.shared["effects.crossed"], whole.shared["effects.crossed"], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(senders.values("personal")["b_mean"], whole.personal["b_mean"], rtol=1e-6, atol=1e-8)


def test_an_item_of_two_sites_is_refused_where_sums_are_masked(tmp_path: Path) -> None:
    df = answers(binary=False)
    df.loc[(df.item == "d") & (df.site > "1"), "item"] = "a"
    data = FormulaData(study("gaussian"), "s")
    total = np.zeros(len(names := part_names(data, classes=False)))
    for name, rows in tables(df).items():
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
        total += parts_of(data.site(tmp_path / f"{name}.csv", name), classes=False)
    assert dict(zip(names, total, strict=True))["item=d"] == 2
    with pytest.raises(UserError, match="item=d: at fewer than 3 sites"):
        check_support(names, total)


def test_rules_see_each_items_columns(tmp_path: Path) -> None:
    """Sums of an item's rows leave: its cell is counted, and its column is one of the design's."""
    df = answers(binary=False)
    tables(df)["0"].to_csv(tmp_path / "0.csv", index=False)
    rows = formula_rows(FormulaData(study("gaussian"), "s").site(tmp_path / "0.csv", "0"))
    assert set(rows.categories) >= {"item"}
    columns = {name: column for name, column in rows.design.items() if "item=" in name}
    assert len(columns) == 4
    assert sum(columns.values()).tolist() == [1.0] * 30
    assert rows.random == 5


@pytest.mark.parametrize(
    ("levels", "change", "says"),
    [
        (ITEMS, lambda df: df.assign(item="a"), "two of 'item' have to have rows"),
        (ITEMS, lambda df: df.assign(item=np.where(df.site > "2", "a", "b")), r"write \(1 \| item/site\)"),
        (tuple(f"i{k}" for k in range(201)), None, "201 x 1 random effects"),
    ],
)
def test_sites_that_share_no_items_are_told_how_to_write_it(levels: tuple, change: object, says: str) -> None:
    def designed() -> None:
        formula = study("gaussian", levels)
        df = change(answers(binary=False))  # type: ignore[operator]
        reader = study_reader(formula, reduce(add, (formula.first(rows) for rows in tables(df).values())))
        reader.design(reduce(add, (reader.second(rows) for rows in tables(df).values())))

    with pytest.raises(UserError, match=says):
        designed()
