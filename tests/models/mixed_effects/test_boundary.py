"""Whether standard deviations are zero: likelihood ratios beside those of refits, and intervals that know of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from support.levels import table as with_levels
from support.representatives import of_all
from support.responses import CASES

from hierfl import mixed_model
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.models.mixed_effects.model.names import by_short_name
from hierfl.models.mixed_effects.report.fitting import fitted
from hierfl.models.mixed_effects.report.intervals import belonging, boundary_tests
from hierfl.models.mixed_effects.report.summary import effects_table


def plain(seed: int, clients: int = 15, rows: int = 6, tau: float = 0.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    g = np.repeat(np.arange(clients), rows)
    y = rng.normal(0, tau, clients)[g] + rng.normal(size=len(g))
    return pd.DataFrame({"g": [f"c{i}" for i in g], "y": y, "x": rng.normal(size=len(g))})


def statistics(fit) -> list[float]:
    return fit.run.shared["effects.boundary"].tolist()


@pytest.mark.cpu(4, "five fits")
@pytest.mark.parametrize("population", ["ml", "reml"])
def test_intercepts_and_slopes(population: str) -> None:
    """Each beside a fit without it; also of a slope far from the covariate's mean."""
    df = plain(0, tau=0.35)
    how = {"population": population}
    fit, away = (
        mixed_model(data, "y ~ x + (1 + x | g)", draws=40, **how) for data in (df, df.assign(x=1900 + 3 * df.x))
    )
    smaller = [mixed_model(df, f"y ~ x + ({random} | g)", draws=0, **how) for random in ("0 + x", "1")]
    theirs = [2 * (fit.log_likelihood - model.log_likelihood) for model in smaller]
    assert statistics(fit) == pytest.approx(theirs, abs=0.01)
    assert statistics(away)[1] == pytest.approx(theirs[1], abs=0.01)
    p = boundary_tests(fit.method, by_short_name(fit.run.shared))["sd(x)"]
    assert p == pytest.approx(0.5 * stats.chi2.sf(theirs[1], 1) + 0.5 * stats.chi2.sf(theirs[1], 2), rel=0.01)


@pytest.mark.cpu(4, "two fits by quadrature")
@pytest.mark.parametrize("family", of_all(["binomial", "negative-binomial", "weibull"], ["binomial", "weibull"], str))
def test_other_responses(family: str) -> None:
    case = CASES[family]
    fit = mixed_model(case.table(10, 0, (4, 8), sd=0.4), case.formula, family=family, draws=40, **case.how)  # type: ignore[arg-type]
    settings = {**vars(fit.method.settings), "draws": 0, "prior": "fixed", "sd_0": 1e-8}
    without = fitted(MixedEffects(fit.method.network, **settings), fit.run.fitted.federation)
    theirs = effects_table(without.fitted)[1]["log_likelihood"]
    assert statistics(fit) == pytest.approx([2 * (fit.log_likelihood - theirs)], abs=0.01)


@pytest.mark.parametrize(
    ("family", "level"),
    [
        ("gaussian", "region"), ("gaussian", "patient"),
        pytest.param("poisson", "region", marks=[pytest.mark.slow, pytest.mark.cpu(20, "quadrature at nodes")]),
    ],
)  # fmt: skip
def test_levels(family: str, level: str) -> None:
    """Of regions and of patients, beside fits without those."""
    case, above = CASES[family], level == "region"
    df = with_levels(case, *((5, 3, 1, 4, 0, (0.6, 0.5, 0.0)) if above else (1, 8, 3, 4, 0, (0.0, 0.3, 0.5))))
    groups, how = "region/site" if above else "site/patient", {"family": family, "client": "site", **case.how}
    fit = mixed_model(df, f"{case.response} ~ 1 + x + (1 | {groups})", draws=40, **how)
    without = mixed_model(df, f"{case.response} ~ 1 + x + (1 | site)", draws=0, **how)
    assert statistics(fit)[1] == pytest.approx(2 * (fit.log_likelihood - without.log_likelihood), abs=0.01)
    assert list(boundary_tests(fit.method, by_short_name(fit.run.shared))) == [
        "sd(Intercept)",
        f"sd(Intercept | {level})",
    ]


def test_slopes_beside_patients() -> None:
    """The searches without one standard deviation have different numbers of unknowns."""
    df = with_levels(CASES["gaussian"], 3, 5, 3, 4)
    how: dict = {"client": "site", "population": "ml"}
    formula = "y ~ x + (1 + x | site)"
    fit = mixed_model(df, f"{formula} + (1 | site:patient)", draws=40, **how)
    without = mixed_model(df, formula, draws=0, **how)
    assert statistics(fit)[-1] == pytest.approx(2 * (fit.log_likelihood - without.log_likelihood), abs=0.01)


def test_no_spread_is_in_the_interval() -> None:
    """At every level: zero where half a chi-squared does not reject it, and the estimate always."""
    zeros = 0
    for seed in range(4):
        fit = mixed_model(plain(seed), "y ~ 1 + (1 | g)", seed=seed, draws=200)
        (statistic,) = statistics(fit)
        p = 1.0 if statistic == 0 else 0.5 * stats.chi2.sf(statistic, 1)
        for level in (0.2, 0.5, 0.9, 0.99):
            row = fit.summary(level).table.set_index("effect").loc["sd(Intercept)"]
            assert row.lower <= row.estimate < row.upper
            assert (row.lower == 0) == (p > 1 - level or row.note != "")
            zeros += row.lower == 0
    assert zeros > 8


def test_known_errors_and_one_round() -> None:
    schools = pd.DataFrame({
        "y": [28.0, 8, -3, 7, -1, 1, 18, 12], "se": [15.0, 10, 16, 11, 9, 11, 10, 18], "school": list("ABCDEFGH"),
    })  # fmt: skip
    wide = schools.assign(y=3 * schools.y)
    fit = mixed_model(wide, "y ~ 1 + (1 | school)", known_se="se", population="ml", draws=40)
    mean = np.average(wide.y, weights=wide.se**-2)
    without = stats.norm.logpdf(wide.y, mean, wide.se).sum()
    assert statistics(fit) == pytest.approx([2 * (fit.log_likelihood - without)], abs=0.01)
    df = plain(2, tau=0.4)
    both = [mixed_model(df, "y ~ x + (1 | g)", draws=40, one_round=one_round) for one_round in (False, True)]
    assert statistics(both[0]) == pytest.approx(statistics(both[1]), abs=1e-6)


def test_a_clear_spread_keeps_its_draws_limits() -> None:
    fit = mixed_model(plain(0, tau=1.5), "y ~ 1 + (1 | g)", draws=200)
    row = fit.summary(0.9).table.set_index("effect").loc["sd(Intercept)"]
    labels, draws = fit.method.population_draws(fit.run.shared, 200)
    assert list(row[["lower", "upper"]]) == pytest.approx(
        np.quantile(draws[:, labels.index("sd(Intercept)")], [0.05, 0.95])
    )


def test_a_fit_of_an_earlier_version_has_no_test() -> None:
    """Its estimate lies in its interval all the same."""
    fit = mixed_model(plain(4), "y ~ 1 + (1 | g)", draws=200)
    kept = {k: v for k, v in fit.run.shared.items() if k != "effects.boundary"}
    table = effects_table(replace(fit.run.fitted, shared=kept))[0].set_index("effect")
    assert table.lower["sd(Intercept)"] <= table.estimate["sd(Intercept)"] <= table.upper["sd(Intercept)"]


@pytest.mark.parametrize(
    ("label", "limits", "value", "error", "expected"),
    [
        ("sd(x)", (2.0, 3.0), 1.0, 0.5, (np.exp(-0.8224), 3.0)),
        ("sd(x)", (0.2, 0.9), 1.0, 0.5, (0.2, np.exp(0.8224))),
        ("corr(a, x)", (-0.5, 0.6), 0.8, 0.1, (-0.5, np.tanh(np.arctanh(0.8) + 0.16449 / 0.36))),
        ("p(zero)", (0.1, 0.2), 0.5, 0.1, (0.1, 1 / (1 + np.exp(-0.16449 / 0.25)))),
        ("1 | 2", (0.1, 0.2), -0.5, 0.1, (-0.66449, 0.2)),
        ("sd(x)", (2.0, 3.0), 1.0, np.nan, (1.0, 3.0)),
        ("sd(x)", (np.nan, np.nan), 1.0, 0.5, (np.nan, np.nan)),
    ],
)
def test_an_estimate_outside_the_draws_limits(label, limits, value, error, expected) -> None:
    interval = belonging(label, limits, value, error, None, 0.0, 0.9)
    assert interval == pytest.approx(expected, rel=1e-4, nan_ok=True)
