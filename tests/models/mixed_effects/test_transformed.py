"""A response that the formula transforms: numbers in its units are said to be, or refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hierfl import UserError, mixed_model
from hierfl.data.formula.transformed import transformed_response


def stays() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    df = pd.DataFrame({"ward": np.repeat(["a", "b", "c", "d"], 6), "arm": ["new", "usual"] * 12})
    return df.assign(days=np.exp(1 + 0.3 * (df.arm == "usual") + rng.normal(0, 0.3, 24)).round(2))


@pytest.mark.parametrize(
    ("formula", "family", "response"),
    [
        ("np.log(days) ~ arm + (1 | ward)", "gaussian", "np.log(days)"),
        ("sqrt(days)~arm", "student-t", "sqrt(days)"),
        ("days ~ log(age)", "gaussian", ""),
        ("`days (log)` ~ arm", "gaussian", ""),
        ("I(arm == 'new') ~ days", "binomial", ""),
        ("p(k, n) ~ days", "beta-binomial", ""),
    ],
)
def test_a_transformed_response_is_known_by_its_formula(formula: str, family: str, response: str) -> None:
    assert transformed_response(formula, family) == response


def test_means_of_a_transformed_response_are_not_said_to_be_on_its_scale() -> None:
    fit = mixed_model(stays(), "np.log(days) ~ arm + (1 | ward)", draws=0)
    assert (fit.means("arm")["mean"] < 2).all()
    for asked in (fit.means, fit.contrast):
        with pytest.raises(UserError, match=r"the response is np.log\(days\), so that means are in its units"):
            asked("arm", scale="response")


@pytest.mark.parametrize(("response", "transformed"), [("np.log(days)", True), ("days", False)])
def test_hierfl_predict_says_whose_units_its_numbers_have(
    response: str, transformed: bool, hierfl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").touch()
    run = SimpleNamespace(formula=f"{response} ~ arm + (1 | ward)", family=None)
    monkeypatch.setattr("hierfl.experiments.predict.ready.ready", lambda folder, trust_code: (None, run))
    monkeypatch.setattr("hierfl.experiments.predict.answers.answered", lambda *asked: pd.DataFrame({"mean": [1.9]}))
    code, out, err = hierfl("predict", tmp_path, "--data", "new.csv", "--new")
    assert (code, out) == (0, "mean\n1.9\n")
    assert ("the formula's response is np.log(days): all numbers are in its units" in err) is transformed
