"""Tables in other units have the same fit: estimates, errors, notes, intervals and draws."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
import pytest
from support.mixed import table
from support.responses import CASES

from hierfl import mixed_model

#: draws of each fit, and the level of the intervals
DRAWS, LEVEL = 100, 0.9


@dataclass(frozen=True)
class Change:
    """Of units: x becomes times x + shift, and y becomes factor y + move."""

    times: float = 1.0
    shift: float = 0.0
    factor: float = 1.0
    move: float = 0.0

    def of(self, df: pd.DataFrame) -> pd.DataFrame:
        y = self.factor * df.y + self.move if (self.factor, self.move) != (1.0, 0.0) else df.y
        return df.assign(x=self.times * df.x + self.shift, y=y)

    def scale(self, family: str) -> float:
        """Of effects: y's where they are in its units."""
        return self.factor if family in ("gaussian", "student-t") else 1.0

    def undone(self, family: str, labels: list[str], values: np.ndarray) -> np.ndarray:
        """Effects (..., m) of the changed table in the first one's units."""
        original, at = values.copy(), {label: k for k, label in enumerate(labels)}
        gaussian = family in ("gaussian", "student-t")
        of_times = {
            "gamma": -1.0,
            "lognormal": -1.0,
            "exponential": 1.0,
            "weibull": values[..., at["shape"]] if "shape" in at else 0.0,
        }
        moved = self.move if gaussian else -np.log(self.factor) * of_times.get(family, 0.0)
        scale = self.scale(family)
        if "Intercept" in at:
            original[..., at["Intercept"]] += self.shift * values[..., at["x"]] - moved
        for label in labels:
            if " | " in label and family == "ordinal":
                original[..., at[label]] -= self.shift * values[..., at["x"]]
        original[..., at["x"]] *= self.times
        if "sd(x)" in at:
            places = [at[name] for name in ("sd(Intercept)", "sd(x)", "corr(Intercept, x)")]
            a, b, r = (values[..., index] for index in places)
            original[..., places[1]] = self.times * b
            if self.shift:
                with np.errstate(invalid="ignore"):  # limits are not of one population
                    at_zero = np.sqrt(a**2 + 2 * self.shift * a * b * r + (self.shift * b) ** 2)
                    original[..., places[0]] = at_zero
                    original[..., places[2]] = (a * r + self.shift * b) / at_zero
        for label in labels:
            if label in ("Intercept", "x", "scale") or label.startswith("sd("):
                original[..., at[label]] /= scale
        return original


CHANGES = {
    "x * 1000": Change(times=1e3), "x + 1900": Change(shift=1900.0), "x / 1e6": Change(times=1e-6),
    "y * 1000": Change(factor=1e3), "y + 1900": Change(move=1900.0), "y / 1e6": Change(factor=1e-6),
}  # fmt: skip


def changes_of(family: str) -> list[str]:
    """Counts have no units."""
    of_y = ["y * 1000", "y + 1900", "y / 1e6"] if family in ("gaussian", "student-t") else ["y * 1000", "y / 1e6"]
    return [
        *list(CHANGES)[:3],
        *(of_y if family in ("gaussian", "student-t", "gamma", "lognormal", "exponential", "weibull") else []),
    ]


@cache
def fitted(family: str, change: str, spread: float):
    """A fit, with random slopes where it is quick; its table's rows are of one kind, few of them."""
    case, how = CASES[family], dict(CASES[family].how)
    df = case.table(12, 3, (4, 9), sd=spread)
    if family == "gaussian":  # slopes that differ
        own = spread * np.random.default_rng(0).normal(size=12)
        df["y"] += own[df.site.astype("category").cat.codes] * df.x
    formula = case.formula.replace("(1 |", "(1 + x |") if family in ("gaussian", "poisson") else case.formula
    made = CHANGES.get(change, Change())
    if "cuts" in how:
        how["cuts"] = ", ".join(str(made.factor * float(cut)) for cut in how["cuts"].split(","))
    return mixed_model(made.of(df), formula, family=family, draws=DRAWS, **how)  # type: ignore[arg-type]


def check(family: str, change: str, spread: float = 0.8) -> None:
    """Everything agrees to 1e-6 standard errors; limits do but where effects of x at zero are others."""
    before, after, made = fitted(family, "", spread), fitted(family, change, spread), CHANGES[change]
    original, changed = (fit.summary(LEVEL).table for fit in (before, after))
    labels = list(original.effect)
    assert list(original.note) == list(changed.note)
    first, second = (fit.method.population_draws(fit.run.shared, DRAWS)[1].numpy() for fit in (before, after))
    width = first.std(0)
    np.testing.assert_allclose(made.undone(family, labels, second) / width, first / width, rtol=0, atol=1e-6)
    others = {"Intercept"} if made.shift or (family == "weibull" and made.factor != 1) else set[str]()
    others |= {name for name in labels if " | " in name} if made.shift else set[str]()
    others |= {"sd(Intercept)", "corr(Intercept, x)"} if made.shift and "sd(x)" in labels else set[str]()
    same = ~original.effect.isin(others).to_numpy()
    error = original.standard_error.where(original.standard_error > 0, width).to_numpy()
    for name in ("estimate", "lower", "upper"):
        rows = same | (name == "estimate")
        gap = (made.undone(family, labels, changed[name].to_numpy()) - original[name].to_numpy()) / error
        np.testing.assert_allclose(gap[rows & original[name].notna()], 0, rtol=0, atol=1e-6, err_msg=name)
        assert (original[name].isna() == changed[name].isna()).all()
    spreads = original.effect.str.startswith("sd(").to_numpy() & same & (original.note == "").to_numpy()
    relative = [(effects.standard_error / effects.estimate)[spreads] for effects in (original, changed)]
    np.testing.assert_allclose(*relative, rtol=1e-6)
    # Clients' own effects of x.
    slopes = [fit.ranef()[["mean", "sd"]][fit.ranef().effect == "x"] for fit in (before, after)]
    np.testing.assert_allclose(slopes[1] * made.times / made.scale(family), slopes[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("change", changes_of("gaussian"))
def test_a_gaussian_response(change: str) -> None:
    check("gaussian", change)


@pytest.mark.parametrize("change", ["x / 1e6", "y * 1000"])
def test_a_gaussian_response_whose_spreads_are_at_their_bounds(change: str) -> None:
    check("gaussian", change, 0.0)


@pytest.mark.parametrize(
    ("family", "change"),
    [
        pytest.param("weibull", "y * 1000", marks=pytest.mark.slow),
        pytest.param("binomial", "x + 1900", marks=pytest.mark.cpu(5, "two fits by quadrature")),
    ],
)
def test_other_responses(family: str, change: str) -> None:
    check(family, change)


@pytest.mark.slow
@pytest.mark.cpu(30, "eight fits at most")
@pytest.mark.parametrize("family", [family for family in CASES if family != "gaussian"])
def test_every_response(family: str) -> None:
    for change in changes_of(family):
        check(family, change)
    check(family, "x * 1000", 0.0)


def test_a_diagonal_covariance_is_of_where_zero_is() -> None:
    """As the documentation says: without correlations a shift makes another model, other units do not."""
    df = table(12)
    fits = [
        mixed_model(
            made.of(df), "y ~ 1 + x + (1 + x | site)", covariance="diagonal", population="ml", draws=0
        ).log_likelihood
        for made in (Change(), Change(times=1e3), Change(shift=5.0))
    ]
    assert fits[1] == pytest.approx(fits[0], abs=1e-9)
    assert abs(fits[2] - fits[0]) > 1e-3
