"""Thirty sites that send sums alone find what one table would: estimates, standard errors, log likelihood, effects."""

from __future__ import annotations

from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from support.sites import Sites

from hierfl.data.federated.design import StudyFormula
from hierfl.data.federated.dictionary import Column, Dictionary
from hierfl.data.formula.design import Family
from hierfl.data.formula.federate import from_formula
from hierfl.inference import fit
from hierfl.models import MixedEffects

STAGES = ("I", "II", "III", "IV")


def patients(family: Family, seed: int = 0) -> pd.DataFrame:
    """Thirty sites of 5 to 40 patients; ten of them have seen no stage IV, and one stage I alone."""
    rng = np.random.default_rng(seed)
    site = np.repeat(np.arange(30), rng.integers(5, 41, 30))
    stage = rng.choice(4, len(site), p=[0.4, 0.3, 0.2, 0.1])
    stage = np.where(site == 0, 0, np.where((site < 10) & (stage == 3), 1, stage))
    age = rng.normal(60, 12, len(site)).clip(20, 99).round(1)
    eta = 0.4 * stage + 0.02 * (age - 60) + rng.normal(0, 0.5, 30)[site]
    y = eta + rng.normal(size=len(site)) if family == "gaussian" else rng.poisson(np.exp(eta - 0.5))
    names = np.array([f"h{j:02d}" for j in range(30)])
    return pd.DataFrame({"site": names[site], "stage": np.array(STAGES)[stage], "age": age, "y": y})


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_sites_find_what_the_table_would(family: Family, tmp_path: Path) -> None:
    df, formula = patients(family), "y ~ center(age) + stage + (1 | site)"
    how = {"rounds": 30, "draws": 2, "dtype": torch.float64, "evaluate_every": 30, "splits": ("train",)}
    federation, design = from_formula(df, formula, family=family)
    settings = {"draws": 0}
    whole = fit(MixedEffects(design, **settings), federation, progress=False, **how)

    outcome = Column("number") if family == "gaussian" else Column("whole", least=0)
    ages = Column("number", least=0, most=120)
    dictionary = Dictionary({"y": outcome, "age": ages, "stage": Column("category", STAGES)})
    study = StudyFormula(formula, dictionary, family)
    tables = {str(name): rows.drop(columns="site") for name, rows in df.groupby("site")}
    reader = study.reader(reduce(add, (study.first(rows) for rows in tables.values())))
    method = MixedEffects(reader.design(reduce(add, (reader.second(rows) for rows in tables.values()))), **settings)
    own = {name: reader.federation(rows, name) for name, rows in tables.items()}
    sites = Sites(method, own["h00"], tmp_path, own, **how)
    run = sites.fit()

    found, numbers = method.population_summary(run.fitted)
    expected, pooled = whole.fitted.method.population_summary(whole.fitted)
    assert found is not None
    assert expected is not None
    pd.testing.assert_frame_equal(found, expected, rtol=1e-8)
    assert numbers["marginal_log_likelihood"] == pytest.approx(pooled["marginal_log_likelihood"], rel=1e-12)
    mine, theirs = sites.values("personal")["b_mean" if method.exact else "b_draws"], whole.personal
    torch.testing.assert_close(mine, theirs["b_mean" if method.exact else "b_draws"], rtol=1e-7, atol=1e-9)
