"""Calls after fits of structures beside each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.representatives import of_all
from support.wards import wards

from hierfl import load_mixed_model, mixed_model

FITS = {
    "y ~ s(x, k=6) + s(z, k=5) + arm + (1 | site/ward) + (1 | item)": {},
    "y ~ s(x, k=6) + arm + (1 | site/ward/patient) + (1 | item)": {"dispersion": "~ arm"},
    "y ~ x + arm + (1 | site/ward/patient)": {"correlation": "ar1(t | patient)"},
}


@pytest.mark.parametrize("formula", of_all([*FITS], [*FITS][1:], str))
def test_answers_are_of_all_levels(formula: str, tmp_path: Path) -> None:
    df = wards()
    fitted = mixed_model(df, formula, draws=0, **FITS[formula])
    own = fitted.fitted()
    np.testing.assert_allclose(own, fitted.predict(df, level="client")["mean"], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(df.y - own, fitted.residuals(kind="response"), atol=1e-9)
    drawn = fitted.simulate(n=50, level="new").to_numpy()
    away = drawn.mean(1) - fitted.predict(df, level="population")["mean"].to_numpy()
    assert np.abs(away / drawn.std(1) * np.sqrt(50)).max() < 5
    fitted.save(tmp_path / "fit")
    again = load_mixed_model(tmp_path / "fit")
    pd.testing.assert_frame_equal(again.predict(df[:9], level="client"), fitted.predict(df[:9], level="client"))
    assert again.log_likelihood == fitted.log_likelihood


@pytest.mark.slow
@pytest.mark.cpu(5, "fits with draws")
@pytest.mark.parametrize("formula", FITS)
def test_draws_are_around_the_effects_given_the_estimates(formula: str) -> None:
    df = wards()
    given, drawn = (mixed_model(df, formula, draws=draws, **FITS[formula]) for draws in (0, 200))
    for level in ("client", "ward", *(["item"] if "item" in formula else [])):
        estimated, sampled = given.ranef(level), drawn.ranef(level)
        assert (np.abs(estimated["mean"] - sampled["mean"]) < 0.35 * sampled["sd"]).all()
        assert (sampled["sd"] > 0).all()
    predictions = drawn.predict(df[:9], level="client", interval=0.9)
    assert ((predictions.lower < predictions["mean"]) & (predictions["mean"] < predictions.upper)).all()
