"""Fits with residuals that correlate within a series: nested ones beside nlme, bounds, refusals, what comes after."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hierfl.arviz_data import group_names
from hierfl.errors import UserError
from hierfl.models.mixed_effects.mixed_model import load_mixed_model, mixed_model

NESTED, PLAIN = "y ~ x + (1 | site/patient)", "y ~ x + (1 | site)"
#: of R 4.2.2, nlme 3.1-162, of tests/data/visits.csv: fixef, standard deviations, rho, log likelihood
#: lme(y ~ x, d, random = ~1 | site/patient, correlation = corAR1(form = ~t | site/patient), method = "ML" or "REML")
#: lme(y ~ x, d, random = ~1 | site, correlation = corCompSymm(form = ~1 | site/patient), method = ...)
NLME = {
    ("ml", "ar1(t | patient)"): (
        [0.282898394666, 0.434318729519, 0.9198430, 0.6539385, 1.101132941, -0.442853372], -609.305978647,
    ),
    ("reml", "ar1(t | patient)"): (
        [0.282863642324, 0.434271587086, 0.9895277, 0.6540926, 1.102420495, -0.441927660], -611.389088177,
    ),
    ("ml", "cs(patient)"): ([0.280910143408, 0.412696884288, 0.9182792, 1.279464382, 0.220809936], -629.501005579),
    ("reml", "cs(patient)"): ([0.280908514459, 0.412622586090, 0.9880387, 1.280959082, 0.220430390], -631.462795773),
}  # fmt: skip


@pytest.fixture(scope="module")
def visits() -> pd.DataFrame:
    """48 patients of 8 sites, eight visits each at some of twelve times; simulated with rho = -0.4."""
    return pd.read_csv(Path(__file__).parents[2] / "data" / "visits.csv")


@pytest.mark.cpu(3, "a search of a nested population")
@pytest.mark.parametrize(("population", "kind"), NLME)
def test_nested_estimates_are_those_of_nlme(population: str, kind: str, visits: pd.DataFrame) -> None:
    formula = NESTED if kind.startswith("ar1") else PLAIN
    shuffled = visits.sample(frac=1, random_state=1)
    fit = mixed_model(shuffled, formula, correlation=kind, population=population, draws=0)
    values, height = NLME[population, kind]
    table = fit.summary().table
    away = np.abs(table["estimate"].to_numpy() - values)
    assert (away[:2] < 0.01 * table["standard_error"].to_numpy()[:2]).all()
    assert (away[2:] < 0.01 * np.abs(values)[2:]).all()
    assert fit.log_likelihood == pytest.approx(height, abs=1e-6)


@pytest.mark.cpu(3, "two searches")
def test_a_positive_correlation_of_all_rows_is_a_random_intercept(visits: pd.DataFrame) -> None:
    serial = mixed_model(visits, PLAIN, correlation="cs(patient)", draws=0)
    nested = mixed_model(visits, NESTED, draws=0)
    assert serial.log_likelihood == pytest.approx(nested.log_likelihood, abs=1e-8)
    s, r = serial.summary().table["estimate"].to_numpy()[-2:]
    between, within = nested.summary().table["estimate"].to_numpy()[-2:]
    assert s**2 == pytest.approx(between**2 + within**2, rel=1e-5)
    assert r == pytest.approx(between**2 / s**2, rel=1e-5)


@pytest.mark.cpu(4, "a search to an end of its range, and draws")
def test_no_correlation_is_the_end_of_the_continuous_one(visits: pd.DataFrame) -> None:
    fit = mixed_model(visits, PLAIN, correlation="car1(t | patient)", draws=40)
    table = fit.summary().table.set_index("effect")
    assert table.loc["rho(residual)", "estimate"] < 1e-6
    assert table.loc["rho(residual)", "lower"] == pytest.approx(0, abs=1e-6)
    plain = mixed_model(visits, PLAIN, draws=0)
    assert fit.log_likelihood == pytest.approx(plain.log_likelihood, abs=1e-6)
    assert table.loc["x", "standard_error"] == pytest.approx(plain.vcov().loc["x", "x"] ** 0.5, rel=1e-5)


@pytest.mark.cpu(4, "a posterior, saved")
def test_after_the_fit(visits: pd.DataFrame, tmp_path: Path) -> None:
    fit = mixed_model(visits, NESTED, correlation="ar1(t | patient)", population="bayes", draws=40)
    rho = fit.summary().table.set_index("effect").loc["rho(residual)"]
    assert rho["lower"] < -0.44 < rho["upper"]
    fit.save(tmp_path / "fit")
    assert load_mixed_model(tmp_path / "fit", visits).predict(visits.head(3)).equals(fit.predict(visits.head(3)))
    drawn = fit.simulate(n=200, seed=3, level="client")
    # pairs of one patient's visits one apart: residuals of the simulated rows beside their mean
    order = visits.sort_values(["site", "patient", "t"])
    away = drawn.sub(drawn.mean(axis=1), axis=0).loc[order.index].to_numpy()
    next_one = (order[["site", "patient"]].shift(-1) == order[["site", "patient"]]).all(axis=1).to_numpy()
    next_one = next_one & (order.t.shift(-1) - order.t == 1).to_numpy()
    first = np.flatnonzero(next_one)
    autocorrelation = (away[first] * away[first + 1]).mean() / (away**2).mean()
    assert autocorrelation == pytest.approx(rho["estimate"], abs=0.03)
    assert "log_likelihood" not in group_names(fit.posterior())
    with pytest.raises(UserError, match="no log likelihood each"):
        fit.posterior(rows=True)
    with pytest.raises(UserError, match="of the rows that were fitted"):
        fit.simulate(visits)


@pytest.mark.parametrize(
    ("formula", "how", "match"),
    [
        (NESTED, {"correlation": "cs(patient)"}, "says the same twice"),
        (PLAIN, {"correlation": "cs(site)"}, "says the same twice"),
        (NESTED, {"correlation": "ar1(t)"}, "residuals correlate within 'patient'"),
        (PLAIN, {"correlation": "ar1(t)"}, "288 rows have the same 't'"),
        (PLAIN, {"correlation": "ar1(half | patient)"}, "whole-number times"),
        (PLAIN, {"correlation": "car1(far | patient)"}, "divide 'far' by about"),
        (PLAIN, {"correlation": "car1(site | patient)"}, "holds no numbers"),
        (PLAIN, {"correlation": "ar1(lacks | patient)"}, "missing value"),
        (PLAIN, {"correlation": "toeplitz(t | patient)"}, "correlation is written"),
        (PLAIN, {"correlation": "cs(t | patient)"}, "cs has a group and no time"),
        (PLAIN, {"correlation": "cs(patient, most=3)"}, "has 8 rows, and most=3"),
        (PLAIN, {"correlation": "ar1(t | row)"}, "no 'row' has two rows"),
        (PLAIN, {"correlation": "ar1(t | patient)", "weights": "t"}, "have no correlation"),
        (PLAIN, {"correlation": "ar1(t | patient)", "family": "lognormal"}, r"log\(y\)"),
        (PLAIN, {"correlation": "ar1(t | patient)", "family": "poisson"}, "gaussian response"),
        (PLAIN, {"correlation": "ar1(t | patient)", "kenward_roger": True}, "kenward_roger"),
        (PLAIN, {"correlation": "ar1(t | patient)", "one_round": True}, "one_round"),
    ],
)
def test_what_is_not_understood_is_one_line(formula: str, how: dict, match: str, visits: pd.DataFrame) -> None:
    df = visits.assign(half=visits.t / 2, far=visits.t * 100, lacks=visits.t.where(visits.index > 0))
    df["row"] = [f"r{k}" for k in range(len(df))]
    with pytest.raises(UserError, match=match) as error:
        mixed_model(df, formula, **how)
    assert "\n" not in str(error.value)
