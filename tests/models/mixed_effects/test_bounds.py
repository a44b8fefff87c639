"""When a standard deviation or a correlation is at its bound: in no table's units, and never by arithmetic."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch

from hierfl import mixed_model
from hierfl.models.mixed_effects.model.names import by_short_name
from hierfl.models.mixed_effects.search.bounds import AT_MEANS, CORRELATION_NOTE, NOT_IDENTIFIED, SD_NOTE, at_bounds


def slopes(seed: int = 1, clients: int = 30, rows: int = 12) -> pd.DataFrame:
    """Slopes over days, 5 standard errors from being all the same."""
    rng = np.random.default_rng(seed)
    g, days = np.repeat(np.arange(clients), rows), np.tile(np.linspace(0, 600, rows), clients)
    own = rng.normal(0, 0.6, clients)[g], rng.normal(0, 0.0005, clients)[g]
    y = own[0] + (0.002 + own[1]) * days + rng.normal(0, 0.2, clients * rows)
    return pd.DataFrame({"g": [f"c{i}" for i in g], "x": days, "y": y})


def no_spread(seed: int = 1, clients: int = 12, rows: int = 6) -> pd.DataFrame:
    """Clients without intercepts or slopes of their own: what each one's rows say of them is taken out."""
    rng = np.random.default_rng(seed)
    g, x, y = np.repeat(np.arange(clients), rows), rng.normal(size=clients * rows), rng.normal(size=clients * rows)
    for c in range(clients):
        z = np.column_stack([np.ones(rows), x[g == c]])
        y[g == c] -= z @ np.linalg.lstsq(z, y[g == c], rcond=None)[0]
    return pd.DataFrame({"g": [f"c{i}" for i in g], "x": x, "y": y})


@cache
def of_unit(unit: float) -> pd.Series:
    """The slope's standard deviation, with its profile's ends."""
    df = slopes()
    fit = mixed_model(df.assign(x=df.x / unit), "y ~ x + (1 + x | g)", draws=0, profile=0.95)
    return fit.summary().table.set_index("effect").loc["sd(x)"]


@pytest.mark.cpu(4, "two profiles")
@pytest.mark.parametrize("unit", [pytest.param(100.0, marks=pytest.mark.slow), 0.01])
def test_a_slopes_spread_in_small_units(unit: float) -> None:
    rescaled, days = of_unit(unit), of_unit(1.0)
    assert rescaled.note == days.note == ""
    ends = ["estimate", "standard_error", "lower", "upper"]
    np.testing.assert_allclose(rescaled[ends].astype(float) / unit, days[ends].astype(float), rtol=1e-6)
    assert days.lower > 0.0003


def test_a_small_spread_of_clients_in_a_wide_response() -> None:
    """Differences of clients are a share of 0.0005 of the response's, and clear all the same."""
    df = slopes()
    rng = np.random.default_rng(0)
    z = 2000 * rng.normal(size=len(df))
    table = mixed_model(df.assign(y=df.y + z, z=z), "y ~ x + z + (1 | g)", draws=0).summary().table.set_index("effect")
    assert table.note["sd(Intercept)"] == ""
    assert table.estimate["sd(Intercept)"] > 4 * table.standard_error["sd(Intercept)"]


def test_years_bring_no_correlation_to_its_bound() -> None:
    df = slopes()
    table = mixed_model(df.assign(x=2000 + df.x / 365), "y ~ x + (1 + x | g)", draws=0).summary().table
    table = table.set_index("effect")
    assert table.estimate["corr(Intercept, x)"] < -0.999
    assert (table.note == "").all()
    assert np.isfinite(table.standard_error["corr(Intercept, x)"])


@pytest.mark.parametrize("shift", [0.0, 1900.0])
def test_a_correlation_of_one_has_an_interval_with_it_and_no_error(shift: float) -> None:
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(15), 12)
    x, b = rng.normal(size=len(who)), rng.normal(size=15)
    y = 1 + b[who] + (0.5 + 0.7 * b[who]) * x + 0.5 * rng.normal(size=len(who))
    df = pd.DataFrame({"y": y, "x": x + shift, "site": who.astype(str)})
    row = mixed_model(df, "y ~ x + (1 + x | site)", draws=100).summary().table.set_index("effect")
    row = row.loc["corr(Intercept, x)"]
    assert row.note == CORRELATION_NOTE
    assert np.isnan(row.standard_error)
    end = -1.0 if shift else 1.0
    assert row.estimate == pytest.approx(end)
    assert (row.lower if shift else row.upper) == end
    assert -1 <= row.lower < row.upper <= 1


def test_effects_that_do_not_vary_have_no_correlation() -> None:
    table = mixed_model(no_spread(), "y ~ x + (1 + x | g)", draws=100).summary().table.set_index("effect")
    assert list(table.note[["sd(Intercept)", "sd(x)"]]) == [SD_NOTE] * 2
    assert list(table.lower[["sd(Intercept)", "sd(x)"]]) == [0.0, 0.0]
    assert table.note["corr(Intercept, x)"] == NOT_IDENTIFIED
    assert table.loc["corr(Intercept, x)", ["estimate", "standard_error"]].isna().all()


def test_an_intercept_that_varies_only_away_from_the_means() -> None:
    """Of years: no spread at their mean, and one in the year 0, where the correlation with the slope is -1."""
    df = slopes()
    fit = mixed_model(df.assign(x=2000 + df.x / 365), "y ~ x + (1 + x | g)", draws=0)
    estimates = by_short_name(fit.run.shared) | {"root": torch.tensor([1e-12, 0.0, 0.3], dtype=torch.float64)}
    bounds = at_bounds(fit.method, estimates)
    assert bounds["sd(Intercept)"] == (AT_MEANS, None, True)
    assert bounds["sd(x)"] == ("", None, True)
    assert bounds["corr(Intercept, x)"] == (NOT_IDENTIFIED, -1.0, True)
