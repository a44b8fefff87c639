"""Rows of a study counted by their quantile residuals: sums at the coordinator, and what a site refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import chisquare, norm
from support.parties import Parties
from support.studies import FORMULA, PATIENTS, STAGES, FileStudy, formula_study, patients, write_tables

from hierfl import load_mixed_model, load_study, mixed_model
from hierfl.errors import UserError
from hierfl.experiments.federate.guard.policy import Policy
from hierfl.experiments.federate.guard.rules import rules
from hierfl.experiments.federate.guard.simulated import PERMISSIVE_POLICY
from hierfl.experiments.federate.leaving import leaving
from hierfl.experiments.federate.study import Study
from hierfl.experiments.federate.study_site import read_site_data
from hierfl.models.mixed_effects.after.histogram import CELLS, client_quantiles, uniformity
from hierfl.models.mixed_effects.after.rows import effects_at_estimates

SETTINGS = {"draws": 0, "residuals": True}


def served(folder: Path, df: pd.DataFrame, **given: Any) -> FileStudy:
    files = write_tables(df, folder / "data")
    parties, policy = Parties.of(list(files)), given.pop("policy", PERMISSIVE_POLICY)
    study = formula_study(folder, files, settings=SETTINGS, rounds=40, parties=parties, **given)
    file_study = FileStudy(study, files, folder, parties, policy)
    file_study.serve()
    return file_study


@pytest.mark.cpu(7, "a study of three sites by files, and the pooled fit")
def test_sites_count_what_the_pooled_fit_counts(tmp_path: Path) -> None:
    df = patients(3, seed=3)
    file_study = served(tmp_path, df)
    pooled = mixed_model(df, FORMULA, draws=0)
    u = norm.cdf(pooled.residuals("quantile", level="client"))
    counts = np.histogram(u, np.linspace(0, 1, 11))[0]
    histogram = load_study(tmp_path / "server").residual_histogram()
    assert histogram["rows"].tolist() == counts.tolist() == pooled.residual_histogram()["rows"].tolist()
    np.testing.assert_allclose((histogram.attrs["chi_squared"], histogram.attrs["p"]), chisquare(counts), rtol=1e-9)
    summary = str(load_study(tmp_path / "server").summary())
    assert f"quantile residuals of {len(df)} rows" in summary
    assert "p errs upwards" in summary
    assert load_study(file_study.site_folder("h01")).residual_histogram()["rows"].tolist() == counts.tolist()


@pytest.mark.slow
@pytest.mark.cpu(10, "a masked study of four sites by files, and the pooled fit")
def test_masked_sites_with_small_cells_count_none(tmp_path: Path) -> None:
    rng, site = np.random.default_rng(1), np.repeat(["a", "b", "c", "d"], [150, 150, 150, 15])
    age = rng.normal(60, 10, len(site)).clip(20, 99).round()
    df = pd.DataFrame({"site": site, "age": age, "y": rng.poisson(np.exp(0.02 * age))})
    formula = "y ~ age + (1 | site)"
    columns, policy = {name: PATIENTS[name] for name in ("y", "age")}, replace(PERMISSIVE_POLICY, least_cell=2)
    served(tmp_path, df, family="poisson", masked=True, columns=columns, formula=formula, policy=policy)
    pooled = mixed_model(df, formula, family="poisson", draws=0).run.fitted
    own = effects_at_estimates(pooled)
    each = [torch.histc(client_quantiles(pooled, own, j), CELLS, 0, 1) for j in range(4)]
    sent = [counts for counts in each if not bool((counts == 1).any())]
    assert 0 < len(sent) < 4
    study_fit = load_study(tmp_path / "server")
    assert study_fit.residual_histogram()["rows"].tolist() == sum(sent).tolist()
    assert f"of {sum(map(float, map(sum, sent))):.0f} of {len(df)} rows" in str(study_fit.summary())


def test_a_policy_and_noise_forbid_it(tmp_path: Path) -> None:
    own, sites = tmp_path / "a.csv", ("a", "b", "c")
    row = np.arange(80)
    df = pd.DataFrame({"y": row % 7.0, "age": 20.0 + row % 60, "stage": np.array(STAGES)[row % 4]})
    df.to_csv(own, index=False)
    study = Study.read(formula_study(tmp_path, dict.fromkeys(sites, own), settings=SETTINGS))
    site = read_site_data(study, own, "a")

    def broken(policy: Policy, *allowed: str) -> bool:
        return "residuals" in {rule.name for rule in rules(study, site, policy, {}, allowed) if not rule.holds}

    assert broken(Policy())
    assert not broken(Policy(), "residuals")
    assert not broken(Policy(residuals="allow"))
    assert broken(Policy(residuals="refuse"), "residuals")
    assert [(v.name, v.shape) for v in leaving(study, site) if v.request == "sums"] == [("residuals", (10,))]
    with pytest.raises(UserError, match="no counts of residuals leave"):
        Study.read(
            formula_study(
                tmp_path, dict.fromkeys(sites, own), settings=SETTINGS, formula="y ~ age + (1 | site)", dp="site",
                epsilon=1.0, delta=1e-5,
            )
        )  # fmt: skip


def test_a_fit_without_rows_has_no_histogram(tmp_path: Path) -> None:
    df = patients(4, seed=1)
    fit = mixed_model(df, FORMULA, draws=0, residuals=True)
    table = fit.residual_histogram()
    assert table["rows"].sum() == len(df)
    assert "quantile residuals" in str(fit.summary())
    fit.save(tmp_path / "fit")
    assert load_mixed_model(tmp_path / "fit", df).residual_histogram().equals(table)
    rowless = load_mixed_model(tmp_path / "fit")
    with pytest.raises(UserError, match="needs the rows"):
        rowless.residual_histogram()
    assert "quantile residuals" not in str(rowless.summary())


def test_equal_cells_have_a_p_value_of_one() -> None:
    assert uniformity(torch.full((10,), 7.0, dtype=torch.float64)) == (70.0, 0.0, 1.0)
    assert uniformity(torch.zeros(10))[0] == 0
