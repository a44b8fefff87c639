"""A study's fit after its end, at the coordinator and at a site."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.studies import FileStudy, formula_study, patients, write_tables

from hierfl import load_study, mixed_model
from hierfl.errors import UserError


@pytest.mark.cpu(7, "a study of three sites by files, and the pooled fit")
def test_a_study_answers_as_the_pooled_fit(tmp_path: Path) -> None:
    df = patients(3, seed=4)
    files = write_tables(df, tmp_path / "data")
    study = formula_study(tmp_path, files, formula="y ~ age + stage + (1 | site)", rounds=60)
    file_study = FileStudy(study, files, tmp_path)
    file_study.serve()
    pooled = mixed_model(df, "y ~ age + stage + (1 | site)", draws=0)
    fit = load_study(tmp_path / "server")
    np.testing.assert_allclose(fit.params, pooled.params, rtol=1e-5)
    np.testing.assert_allclose(fit.vcov(), pooled.vcov(), rtol=1e-4, atol=1e-9)
    alone = df.drop(columns="site")
    for ask in (
        lambda f: f.confint(), lambda f: f.test("age = 0").drop(columns=["hypothesis", "reference"]),
        lambda f: f.means("stage").drop(columns="stage"), lambda f: f.contrast("stage").iloc[:, 1:],
        lambda f: f.anova()[["statistic", "p"]], lambda f: f.icc(),
        lambda f: f.predict(df[:5], level="population", interval=None),
        lambda f: f.predict(alone[:5], level="new", interval=None, given=alone[5:15]),
    ):  # fmt: skip
        np.testing.assert_allclose(ask(fit).astype(float), ask(pooled).astype(float), rtol=1e-3, atol=1e-6)
    assert (fit.nobs, round(fit.aic, 4)) == (pooled.nobs, round(pooled.aic, 4))
    for ask in (lambda: fit.ranef(), lambda: fit.influence(), lambda: fit.predict(df[:5])):
        with pytest.raises(UserError, match="stays there"):
            ask()
    for ask in (lambda: fit.residuals(), lambda: fit.residual_histogram()):
        with pytest.raises(UserError, match="no rows"):
            ask()
    with pytest.raises(UserError, match="no folder of a study"):
        load_study(tmp_path / "data")
    own = load_study(file_study.site_folder("h01"))
    rows = df[df.site == "h01"]
    np.testing.assert_allclose(own.fitted(), pooled.fitted()[rows.index], rtol=1e-4)
    np.testing.assert_allclose(own.residuals("pearson"), pooled.residuals("pearson")[rows.index], rtol=1e-3, atol=1e-5)
    expected = pooled.ranef().set_index("client").loc[["h01"]]
    pd.testing.assert_series_equal(own.ranef().set_index("client")["mean"], expected["mean"], rtol=1e-4)
    np.testing.assert_allclose(own.params, pooled.params, rtol=1e-5)
    for each in (fit, own):
        for refused in (
            each.refit,
            lambda each=each: each.save(tmp_path / "saved"),
            each.shrinkage,
            lambda: fit.compare(own),
        ):
            with pytest.raises(UserError, match="study|all rows, and they are at their sites"):
                refused()
    with pytest.raises(UserError, match="which are at the sites"):
        fit.posterior()
