"""Rows of a study counted by their quantile residuals: sums at the coordinator, and what a site refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chisquare, norm
from support.studies import FORMULA, FileStudy, formula_study, patients, write_tables

from hierfl import load_study, mixed_model
from hierfl.errors import UserError

SETTINGS = {"draws": 0, "residuals": True}


def served(folder: Path, df: pd.DataFrame, **given: object) -> FileStudy:
    files = write_tables(df, folder / "data")
    policy = {"policy": given.pop("policy")} if "policy" in given else {}
    place = FileStudy(formula_study(folder, files, settings=SETTINGS, rounds=40, **given), files, folder, **policy)
    place.serve()
    return place


def test_sites_count_what_the_pooled_fit_counts(tmp_path: Path) -> None:
    df = patients(3, seed=3)
    place = served(tmp_path, df)
    pooled = mixed_model(df, FORMULA, draws=0)
    u = norm.cdf(pooled.residuals("quantile", level="client"))
    counts = np.histogram(u, np.linspace(0, 1, 11))[0]
    found = load_study(tmp_path / "server").residual_histogram()
    assert found["rows"].tolist() == counts.tolist() == pooled.residual_histogram()["rows"].tolist()
    np.testing.assert_allclose((found.attrs["chi_squared"], found.attrs["p"]), chisquare(counts), rtol=1e-9)
    summary = str(load_study(tmp_path / "server").summary())
    assert f"quantile residuals of {len(df)} rows" in summary and "p errs upwards" in summary
    assert load_study(place.place("h01")).residual_histogram()["rows"].tolist() == counts.tolist()
