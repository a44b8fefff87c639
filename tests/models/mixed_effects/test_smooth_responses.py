"""Smooth terms of other responses than gaussian: Laplace's approximation of the curve's effects."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.special import gammaln
from support.smooth import waves

from hierfl import mixed_model
from hierfl.data.formula.smooth import Smooth

FORMULA = "n ~ s(x, k=7, lower=0, upper=10) + z + (1 | site)"


def laplace(theta: np.ndarray, df: pd.DataFrame) -> float:
    """Of all effects at once, densely: theta = [intercept, line, slope, log sd of sites, log sd of the curve]."""
    curve = Smooth("x", 7, (0.0, 10.0)).basis(5.0, 1.0).columns(df.x.to_numpy())
    site = pd.get_dummies(df.site).to_numpy(dtype=float)
    z = np.hstack([np.exp(theta[3]) * site, np.exp(theta[4]) * curve])
    fixed, y, u = theta[0] + theta[1] * df.x + theta[2] * df.z, df.n.to_numpy(dtype=float), np.zeros(z.shape[1])
    for _ in range(50):
        rate = np.exp(fixed + z @ u)
        u += np.linalg.solve(np.eye(len(u)) + (z.T * rate.to_numpy()) @ z, z.T @ (y - rate) - u)
    eta = fixed + z @ u
    curvature = np.eye(len(u)) + (z.T * np.exp(eta).to_numpy()) @ z
    value = (y * eta - np.exp(eta) - gammaln(y + 1)).sum()
    return float(value - 0.5 * u @ u - 0.5 * np.linalg.slogdet(curvature)[1])


@pytest.mark.slow
@pytest.mark.cpu(12, "a climb, and a referee's")
def test_with_one_node_it_is_laplaces_approximation_of_all_effects() -> None:
    df = waves()
    df["n"] = np.random.default_rng(0).poisson(np.exp(0.7 * df.y.clip(-2, 4)))
    fitted = mixed_model(df, FORMULA, family="poisson", nodes=1, population="ml", draws=0)
    table = fitted.summary().table
    at = np.concatenate([table.estimate[:3], np.log(table.estimate[3:])])
    assert fitted.log_likelihood == pytest.approx(laplace(at, df), abs=1e-5)
    best = minimize(lambda theta: -laplace(theta, df), at + 0.01, method="Nelder-Mead", options={
        "xatol": 1e-6, "fatol": 1e-9, "maxiter": 3000, "maxfev": 3000,
    })  # fmt: skip
    assert fitted.log_likelihood == pytest.approx(-best.fun, abs=1e-5)
    gap = np.abs(best.x[:3] - at[:3])
    assert (gap < 0.01 * table.standard_error[:3]).all()
    np.testing.assert_allclose(np.exp(best.x[3:]), table.estimate[3:], rtol=0.01)
