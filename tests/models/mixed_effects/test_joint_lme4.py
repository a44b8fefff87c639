"""Several levels inside clients, nested and crossed, beside lme4: values of lme4/joint_levels.R."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from support.representatives import of_all

from hierfl import mixed_model

HERE = Path(__file__).parent / "lme4"
CROSSED = "~ x + (1 | site) + (1 | site:nurse) + (1 | site:item)"
#: of each model of the script: the table, its formula and family, and what lme4 calls its standard deviations
MODELS: dict[str, tuple[str, str, str, dict[str, str]]] = {
    "crossed": ("joint_levels", f"gaussian {CROSSED}", "gaussian", {
        "site": "Intercept", "site:nurse": "Intercept | nurse", "site:item": "Intercept | item"}),
    "slopes": ("joint_levels", "gaussian ~ x + (1 | site) + (1 + x | site:nurse) + (1 | site:item)", "gaussian", {
        "site": "Intercept", "site:nurse": "Intercept | nurse", "site:nurse x": "x | nurse",
        "site:item": "Intercept | item"}),
    "three": ("joint_levels", f"gaussian {CROSSED} + (1 | site:nurse:item)", "gaussian", {
        "site": "Intercept", "site:nurse": "Intercept | nurse", "site:item": "Intercept | item",
        "site:nurse:item": "Intercept | nurse:item"}),
    "penicillin": ("penicillin", "diameter ~ 1 + (1 | site) + (1 | site:plate) + (1 | site:sample)", "gaussian", {
        "site:plate": "Intercept | plate", "site:sample": "Intercept | sample"}),
    "oxide": ("oxide", "thickness ~ 1 + (1 | source / lot / wafer)", "gaussian", {
        "source": "Intercept", "lot:source": "Intercept | lot", "wafer:(lot:source)": "Intercept | lot:wafer"}),
    "insteval": (
        "insteval", "y ~ service + (1 | dept) + (1 | dept:student) + (1 | dept:lecturer)", "gaussian", {
        "dept:student": "Intercept | student", "dept:lecturer": "Intercept | lecturer"}),
    "poisson": ("joint_levels", f"poisson {CROSSED}", "poisson", {
        "site": "Intercept", "site:nurse": "Intercept | nurse", "site:item": "Intercept | item"}),
    "binomial": ("joint_levels", f"p(k, n) {CROSSED}", "binomial", {
        "site": "Intercept", "site:nurse": "Intercept | nurse", "site:item": "Intercept | item"}),
    "nested poisson": ("joint_levels", "poisson ~ x + (1 | site / nurse / item)", "poisson", {
        "site": "Intercept", "nurse:site": "Intercept | nurse", "item:(nurse:site)": "Intercept | nurse:item"}),
}  # fmt: skip


@cache
def lme4() -> dict[str, dict[str, float]]:
    """What lme4 says of each model, {model and criterion: {what: value}}."""
    table = pd.read_csv(HERE / "joint_levels_lme4.csv")
    return {name: dict(zip(of.what, of.value.astype(float), strict=True)) for name, of in table.groupby("model")}


@pytest.mark.parametrize("model", of_all(sorted(lme4()), lme4().keys() - {"nested poisson ml"}, str))
def test_a_fit_is_lme4s(model: str) -> None:
    name, _, criterion = model.rpartition(" ")
    table, formula, family, called = MODELS[name]
    fit = mixed_model(
        pd.read_csv(HERE / f"{table}.csv"), formula, family=family, population=criterion, draws=0  # type: ignore[arg-type]
    )  # fmt: skip
    summary, expected = fit.summary(), dict(lme4()[model])
    rows = summary.table.set_index("effect")
    for coefficient in [what for what in expected if f"se {what}" in expected]:
        row = rows.loc[coefficient.strip("()")]
        error = expected[f"se {coefficient}"]
        assert abs(row.estimate - expected[coefficient]) < 0.01 * error
        assert row.standard_error == pytest.approx(error, rel=5e-3)
    for theirs, ours in called.items():
        assert rows.loc[f"sd({ours})"].estimate == pytest.approx(expected[f"sd {theirs}"], rel=0.01)
    if family == "gaussian":
        assert rows.loc["sd(residual)"].estimate == pytest.approx(expected["sd Residual"], rel=0.01)
    assert summary.numbers["log_likelihood"] > expected["logLik"] - 1e-3
    assert summary.numbers["log_likelihood"] == pytest.approx(expected["logLik"], abs=1e-3)
    assert any("Laplace" in note for note in summary.notes) == (family != "gaussian")
