"""Sites find a smooth term by sums alone, as one table does; knots are of the limits, or of sums over sites."""

from __future__ import annotations

from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from support.sites import Sites
from support.smooth import waves

from hierfl.data.disclosure.encodings import encoding_rules
from hierfl.data.disclosure.formula_rows import formula_rows
from hierfl.data.federated.design import StudyFormula
from hierfl.data.federated.dictionary import Column, Dictionary
from hierfl.data.federated.formula_data import FormulaData
from hierfl.data.federated.study_reader import study_reader
from hierfl.data.formula.federate import from_formula
from hierfl.errors import UserError
from hierfl.inference import fit
from hierfl.models import MixedEffects

FORMULA = "y ~ s(x, k=7) + s(z, k=5) + (1 | site)"


def study(formula: str = FORMULA) -> StudyFormula:
    columns = {"y": Column("number"), "x": Column("number", least=0, most=10), "z": Column("number")}
    return StudyFormula(formula, Dictionary(columns), "gaussian")


def tables(df: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {str(name): rows.drop(columns="site") for name, rows in df.groupby("site")}


@pytest.mark.cpu(5, "a search asked of three sites through bytes")
def test_sites_find_what_the_table_would(tmp_path: Path) -> None:
    df = waves()
    df = df[df.site < "s3"].reset_index(drop=True)
    how = {"rounds": 60, "draws": 2, "dtype": torch.float64, "evaluate_every": 60, "splits": ("train",)}
    settings: dict = {"draws": 0}
    federation, design = from_formula(df, FORMULA)
    whole = fit(MixedEffects(design, **settings), federation, progress=False, **how)

    formula, own_rows = study(), tables(df)
    reader = study_reader(formula, reduce(add, (formula.first(rows) for rows in own_rows.values())))
    pooled, own_smooths = federation.about["reader"].smooths, reader.reader.smooths
    assert list(own_smooths) == list(pooled) == ["outer", "outer_2"]
    for kind, basis in own_smooths.items():
        np.testing.assert_allclose(basis.knots, pooled[kind].knots, rtol=1e-12)
    made = reader.design(reduce(add, (reader.second(rows) for rows in own_rows.values())))
    assert made.width == design.width
    method = MixedEffects(made, **settings)
    own = {name: reader.federation(rows, name) for name, rows in own_rows.items()}
    senders = Sites(method, own["s0"], tmp_path, own, **how)
    run = senders.fit()

    effects, numbers = method.population_summary(run.fitted)
    expected, numbers_of_all = whole.fitted.method.population_summary(whole.fitted)
    assert effects is not None
    assert expected is not None
    pd.testing.assert_frame_equal(effects, expected, rtol=1e-5)
    assert numbers["log_likelihood"] == pytest.approx(numbers_of_all["log_likelihood"], rel=1e-9)
    for name in ("effects.crossed", "effects.crossed_2"):
        torch.testing.assert_close(run.shared[name], whole.shared[name], rtol=1e-4, atol=1e-6)


def test_rules_see_the_columns_of_a_curve(tmp_path: Path) -> None:
    """A column of whole numbers has equal distances on both sides of a turning point, but for rounding."""
    tables(waves().assign(x=waves().x.round()))["s0"].to_csv(tmp_path / "s0.csv", index=False)
    rows = formula_rows(FormulaData(study(), "s").site(tmp_path / "s0.csv", "s0"))
    assert sum(name.startswith("s(x).") for name in rows.design) == 5
    assert rows.curves == {name for name in rows.design if name.startswith(("s(x).", "s(z)."))}
    assert all(rule.holds for rule in encoding_rules(rows, {"x": rows.numbers["x"], "z": rows.numbers["z"]}))
    assert rows.random == 9


def test_a_curve_of_a_category_is_refused_before_any_sum() -> None:
    df = waves()
    columns = {"y": Column("number"), "x": Column("category", ("a", "b")), "z": Column("number")}
    formula = StudyFormula(FORMULA, Dictionary(columns), "gaussian")
    rows = [own.assign(x=np.where(own.x < 5, "a", "b")) for own in tables(df).values()]
    moments = reduce(add, (formula.first(own) for own in rows))
    with pytest.raises(UserError, match=r"s\(x\) is of a column of numbers"):
        study_reader(formula, moments)
