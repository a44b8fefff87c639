"""Numbers that the authors of R's packages print of their own data, by Laplace's approximation beside theirs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hierfl import mixed_model

#: contagious bovine pleuropneumonia in 15 herds (Lesnoff et al., 2004; lme4's cbpp): herd, cases, animals, period
CBPP = """
1 2 14 1  1 3 12 2  1 4 9 3  1 0 5 4  2 3 22 1  2 1 18 2  2 1 21 3  3 8 22 1  3 2 16 2  3 0 16 3  3 2 20 4  4 2 10 1
4 0 10 2  4 2 9 3  4 0 6 4  5 5 18 1  5 0 25 2  5 0 24 3  5 1 4 4  6 3 17 1  6 0 17 2  6 0 18 3  6 1 20 4  7 8 16 1
7 1 10 2  7 3 9 3  7 0 5 4  8 12 34 1  9 2 9 1  9 0 6 2  9 0 8 3  9 0 6 4  10 1 22 1  10 1 22 2  10 0 18 3  10 2 22 4
11 0 25 1  11 5 27 2  11 3 22 3  11 1 22 4  12 2 10 1  12 1 8 2  12 0 6 3  12 0 5 4  13 1 21 1  13 2 24 2  13 0 19 3
13 0 23 4  14 11 19 1  14 0 2 2  14 0 3 3  14 0 2 4  15 1 19 1  15 1 15 2  15 1 15 3  15 0 15 4
"""
#: bitterness of wine, by nine judges, of eight bottles: cold, cold with contact, warm, warm with contact, two of each
#: (Randall, 1989; ordinal's wine)
WINE = "23344455 12132354 23325544 32323253 23433333 32322454 11222323 22233334 12323244"


def test_cbpp() -> None:
    """glmer(cbind(incidence, size - incidence) ~ period + (1 | herd), cbpp, binomial), as lme4 and glmmTMB print it."""
    cells = np.array(CBPP.split(), dtype=int).reshape(-1, 4)
    df = pd.DataFrame(cells, columns=["herd", "cases", "n", "period"])
    df = df.astype({"herd": str, "period": "category"})
    assert len(df) == 56
    fit = mixed_model(df, "p(cases, n) ~ period + (1 | herd)", family="binomial", nodes=1, population="ml", draws=0)
    table, numbers = fit.summary().table, fit.summary().numbers
    # glmmTMB's; lme4's optimiser stops 0.0015 standard errors short of them
    assert table.estimate.to_numpy() == pytest.approx([-1.3985, -0.9923, -1.1287, -1.5803, 0.6422], abs=1e-4)
    assert table.standard_error[:4].to_numpy() == pytest.approx([0.2325, 0.3066, 0.3266, 0.4274], abs=1e-4)
    gap = table.estimate[:4].to_numpy() - [-1.3983, -0.9919, -1.1282, -1.5797]
    assert (np.abs(gap) < 0.002 * table.standard_error[:4]).all()
    assert -92.02657 < numbers["log_likelihood"] < -92.0256
    assert numbers["aic"] == pytest.approx(194.1, abs=0.06)
    assert numbers["bic"] == pytest.approx(204.2, abs=0.06)


def test_wine() -> None:
    """clmm(rating ~ temp + contact + (1 | judge), wine)."""
    rating = np.array([int(digit) for digit in WINE.replace(" ", "")])
    df = pd.DataFrame({"rating": rating, "judge": np.repeat(list("123456789"), 8)})
    df["warm"], df["contact"] = np.tile([0, 0, 0, 0, 1, 1, 1, 1], 9), np.tile([0, 0, 1, 1] * 2, 9)
    fit = mixed_model(
        df, "rating ~ 1 + warm + contact + (1 | judge)", family="ordinal", nodes=1, population="ml", draws=0
    )
    table = fit.summary().table.set_index("effect")
    wanted = {"warm": 3.0630, "contact": 1.8349, "1 | 2": -1.6237, "2 | 3": 1.5134, "3 | 4": 4.2285, "4 | 5": 6.0888}
    errors = {"warm": 0.5954, "contact": 0.5125, "1 | 2": 0.6824, "2 | 3": 0.6038, "3 | 4": 0.8090, "4 | 5": 0.9725}
    for name, value in wanted.items():
        assert table.estimate[name] == pytest.approx(value, abs=2e-4), name
        assert table.standard_error[name] == pytest.approx(errors[name], abs=2e-4), name
    assert table.estimate["sd(Intercept)"] ** 2 == pytest.approx(1.279, abs=1e-3)
    assert fit.log_likelihood == pytest.approx(-81.57, abs=5e-3)
