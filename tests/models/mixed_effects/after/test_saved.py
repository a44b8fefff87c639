"""Fits that are written and read again."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from support.after_fit import arms

from hierfl import UserError, load_mixed_model, mixed_model

DF = arms()


@pytest.mark.cpu(4, "a fit with draws, answered twice")
@pytest.mark.parametrize("family", [pytest.param("gaussian", marks=pytest.mark.slow), "poisson"])
def test_a_fit_that_was_saved_answers_as_before(family: str, tmp_path: Path) -> None:
    left, effects = ("y", "1 + x") if family == "gaussian" else ("k", "1")
    df = DF.assign(x=DF.x.mask(DF.index % 40 == 0))
    fit = mixed_model(df, f"{left} ~ arm + x + ({effects} | site)", family=family, na="drop", draws=100, seed=3)
    fit.save(tmp_path / "fit")
    again = load_mixed_model(tmp_path / "fit", df)
    assert str(again) == str(fit)
    for ask in (
        lambda f: f.vcov(), lambda f: f.predict(DF[:9]), lambda f: f.ranef(), lambda f: f.contrast("arm"),
        lambda f: f.influence(), lambda f: f.simulate(n=1), lambda f: f.shrinkage(),
        lambda f: f.residuals("quantile").to_frame(),
    ):  # fmt: skip
        pd.testing.assert_frame_equal(ask(again), ask(fit))
    assert again.run.rounds == fit.run.rounds
    assert again.left_out == fit.left_out
    assert again.refit("~ . - x").params.index.tolist() == ["Intercept", "arm[b]", "arm[c]"]
    files = sorted(path.suffix for path in (tmp_path / "fit").iterdir())
    assert files == [".json", ".safetensors"]


def test_another_table_and_a_changed_folder_are_refused(tmp_path: Path) -> None:
    fit = mixed_model(DF, "y ~ x + (1 | site)", draws=0)
    fit.save(tmp_path)
    with pytest.raises(UserError, match="not the one that was fitted"):
        load_mixed_model(tmp_path, DF.assign(y=DF.y + 1e-6))
    with pytest.raises(UserError, match="not the one that was fitted"):
        load_mixed_model(tmp_path, DF.assign(site="t" + DF.site))
    path = tmp_path / "checkpoint.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "formula": "y ~ arm + (1 | site)"}))
    with pytest.raises(UserError, match="checksum"):
        load_mixed_model(tmp_path, DF)
    with pytest.raises(UserError, match="no checkpoint"):
        load_mixed_model(tmp_path / "none", DF)


def test_a_table_whose_levels_have_other_names_is_another_one(tmp_path: Path) -> None:
    df = DF.assign(arm=pd.Categorical(DF.arm, ["a", "b", "c"]))
    mixed_model(df, "y ~ arm + (1 | site)", draws=0).save(tmp_path)
    assert load_mixed_model(tmp_path, df).params.index.tolist() == ["Intercept", "arm[b]", "arm[c]"]
    for names in ({"b": "c", "c": "b"}, {"a": "z"}):
        with pytest.raises(UserError, match="not the one that was fitted"):
            load_mixed_model(tmp_path, df.assign(arm=df.arm.cat.rename_categories(names)))
