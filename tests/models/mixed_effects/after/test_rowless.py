"""Fits that were written, and read again without their table."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from safetensors.torch import load_file
from support.after_fit import arms

from hierfl import UserError, load_mixed_model, mixed_model
from hierfl.data.formula.design import Design
from hierfl.models.mixed_effects.after.rowless import CONVERTED_ENTRIES, OTHER_GROUPS, PLAIN
from hierfl.models.mixed_effects.fitted_model import FittedMixedModel
from hierfl.nn.architecture import Architecture

DF = arms()
DF = DF.assign(x=DF.x.mask(DF.index % 40 == 0), dose=DF.index % 3)
ASKED: dict[str, Callable[[FittedMixedModel], Any]] = {
    "vcov": lambda f: f.vcov(), "confint": lambda f: f.confint(), "ranef": lambda f: f.ranef(),
    "anova": lambda f: f.anova(), "means": lambda f: f.means("arm"), "contrast": lambda f: f.contrast("arm"),
    "influence": lambda f: f.influence(), "predict": lambda f: f.predict(DF.dropna()[:30]),
    "new": lambda f: f.predict(DF.dropna()[:30], level="new"), "simulate": lambda f: f.simulate(DF.dropna()[:9]),
    "fitted": lambda f: f.fitted(DF.dropna()).to_frame(),
    "quantile": lambda f: f.residuals("quantile", DF.dropna()).to_frame(),
}  # fmt: skip


@pytest.mark.cpu(6, "two fits, one with draws, answered twice")
@pytest.mark.parametrize(
    ("formula", "how"),
    [("y ~ arm * sex + scale(x) + (1 + x | site)", {"draws": 60}),
     ("k ~ C(arm, levels=['c', 'a', 'b']) + factor(dose) + center(x) + (1 | site)", {"family": "poisson", "draws": 0})],
)  # fmt: skip
def test_a_fit_without_its_table_answers_as_with_it(formula: str, how: dict[str, Any], tmp_path: Path) -> None:
    fit = mixed_model(DF, formula, na="drop", seed=3, **how)
    fit.save(tmp_path)
    again = load_mixed_model(tmp_path)
    assert str(again) == str(fit)
    assert (again.aic, again.nobs, again.left_out) == (fit.aic, fit.nobs, fit.left_out)
    level = "arm[b]" if "arm[b]" in fit.params else "C(arm)[b]"
    for ask in [*ASKED.values(), lambda f: f.test(f"{level} = 0")]:
        pd.testing.assert_frame_equal(ask(again), ask(fit), rtol=1e-9)


@pytest.mark.cpu(6, "six structures, each fitted once")
@pytest.mark.parametrize(
    ("formula", "how"),
    [
        ("y ~ arm + (1 | region/site/nurse)", {"client": "site"}),
        ("y ~ arm + (1 | site) + (1 | site:nurse) + (1 | site:dose)", {}),
        ("y ~ arm + (1 | site) + (1 | nurse)", {"client": "site"}),
        ("y ~ arm + (1 | site)", {"dispersion": "~ arm"}),
        ("y ~ arm + (1 | site)", {"dispersion": "~ (1 | site)"}),
        ("y ~ arm + (1 | site)", {"correlation": "ar1(visit)"}),
    ],
)
def test_a_structure_needs_no_table(formula: str, how: dict[str, Any], tmp_path: Path) -> None:
    df = DF.assign(
        region="r" + (DF.site.str[1:].astype(int) % 4).astype(str), nurse="n" + (DF.index % 5).astype(str),
        visit=DF.groupby("site").cumcount(), dose=DF.dose.map("d{}".format),
    )  # fmt: skip
    fit = mixed_model(df, formula, draws=0, **how)
    fit.save(tmp_path)
    again = load_mixed_model(tmp_path)
    assert str(again) == str(fit)
    for level in (
        "client",
        *(level for level in ("nurse", "region") if f"{level}/" in formula or f"{level})" in formula),
    ):
        pd.testing.assert_frame_equal(again.ranef(level), fit.ranef(level))
    pd.testing.assert_frame_equal(again.predict(df[:40]), fit.predict(df[:40]))


def test_all_of_a_design_is_written() -> None:
    own = {field.name for field in fields(Design)} - {field.name for field in fields(Architecture)}
    assert own == {*PLAIN, *OTHER_GROUPS, *CONVERTED_ENTRIES}


def test_what_needs_rows_says_so(tmp_path: Path) -> None:
    fit = mixed_model(DF, "y ~ arm + (1 | site)", draws=0)
    fit.save(tmp_path)
    again = load_mixed_model(tmp_path)
    for ask in (
        lambda: again.residuals(), lambda: again.fitted(), lambda: again.simulate(), lambda: again.refit("~ . - arm"),
        lambda: again.shrinkage(), lambda: again.compare(fit), lambda: fit.compare(again), lambda: again.posterior(),
        lambda: again.save(tmp_path / "other"),
    ):  # fmt: skip
        with pytest.raises(UserError, match="rows.*df="):
            ask()
    with pytest.raises(UserError, match="not the one that was fitted"):
        load_mixed_model(tmp_path, DF.assign(y=DF.y + 1))


def test_knots_of_rows_are_not_written(tmp_path: Path) -> None:
    df = DF.dropna()
    fit = mixed_model(df, "y ~ arm + poly(x, 2) + (1 | site)", draws=0)
    fit.save(tmp_path)
    again = load_mixed_model(tmp_path)
    pd.testing.assert_frame_equal(again.vcov(), fit.vcov())
    with pytest.raises(UserError, match="are not made without the rows.*df="):
        again.means("arm")
    pd.testing.assert_frame_equal(load_mixed_model(tmp_path, df).means("arm"), fit.means("arm"))


def test_no_value_of_a_row_is_in_the_folder(tmp_path: Path) -> None:
    df = DF.dropna()
    mixed_model(df, "y ~ arm + scale(x) + (1 + x | site)", draws=0).save(tmp_path)
    (state,) = tmp_path.glob("*.safetensors")
    numbers = {float(value) for tensor in load_file(state).values() for value in tensor.double().flatten()}

    def walk(value: Any) -> None:
        if isinstance(value, dict | list):
            for entry in value.values() if isinstance(value, dict) else value:
                walk(entry)
        elif isinstance(value, float):
            numbers.add(value)

    walk(json.loads((tmp_path / "checkpoint.json").read_text()))
    assert not numbers & {*df.x, *df.y}
