"""Sites that send sums alone find what one table would: estimates, standard errors, log likelihood, effects."""

from __future__ import annotations

from functools import reduce
from operator import add
from pathlib import Path

import pandas as pd
import pytest
import torch
from support.sites import Sites
from support.studies import FORMULA, STAGES, patients

from hierfl.data.federated.design import StudyFormula
from hierfl.data.federated.dictionary import Column, Dictionary
from hierfl.data.federated.study_reader import study_reader
from hierfl.data.formula.federate import from_formula
from hierfl.inference import fit
from hierfl.models import MixedEffects


@pytest.mark.cpu(6, "a search of some sixty rounds, asked of eight sites through bytes")
@pytest.mark.parametrize(
    ("family", "sites", "more"),
    [
        ("gaussian", 12, {}),
        ("poisson", 8, {}),
        pytest.param("hurdle-poisson", 8, {}, marks=pytest.mark.slow),
        ("gaussian", 12, {"one_round": True, "least_rows": 1}),
    ],
)
def test_sites_find_what_the_table_would(family: str, sites: int, more: dict, tmp_path: Path) -> None:
    df, formula = patients(sites, counts=family != "gaussian"), FORMULA
    how = {"rounds": 30, "draws": 2, "dtype": torch.float64, "evaluate_every": 30, "splits": ("train",)}
    federation, design = from_formula(df, formula, family=family)
    settings: dict = {"draws": 0, **more}
    whole = fit(MixedEffects(design, **settings), federation, progress=False, **how)

    outcome = Column("number") if family == "gaussian" else Column("whole", least=0)
    ages = Column("number", least=0, most=120)
    dictionary = Dictionary({"y": outcome, "age": ages, "stage": Column("category", STAGES)})
    study = StudyFormula(formula, dictionary, family)
    tables = {str(name): rows.drop(columns="site") for name, rows in df.groupby("site")}
    reader = study_reader(study, reduce(add, (study.first(rows) for rows in tables.values())))
    method = MixedEffects(reader.design(reduce(add, (reader.second(rows) for rows in tables.values()))), **settings)
    own = {name: reader.federation(rows, name) for name, rows in tables.items()}
    senders = Sites(method, own["h00"], tmp_path, own, **how)
    run = senders.fit()

    effects, numbers = method.population_summary(run.fitted)
    expected, pooled = whole.fitted.method.population_summary(whole.fitted)
    assert effects is not None
    assert expected is not None
    pd.testing.assert_frame_equal(effects, expected, rtol=1e-8)
    assert numbers["log_likelihood"] == pytest.approx(pooled["log_likelihood"], rel=1e-12)
    for name in ("b_mean", "b_root"):
        torch.testing.assert_close(senders.values("personal")[name], whole.personal[name], rtol=1e-7, atol=1e-9)
