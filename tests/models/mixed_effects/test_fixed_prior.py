"""Clients' standard deviation held where it is."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hierfl import mixed_model

SITES, ROWS, SD = 6, 4, 0.9


def table() -> pd.DataFrame:
    rng = np.random.default_rng(2)
    site, x = np.repeat(np.arange(SITES), ROWS), rng.normal(size=SITES * ROWS)
    y = 1 + 0.5 * x + SD * rng.normal(size=SITES)[site] + 0.6 * rng.normal(size=len(x))
    return pd.DataFrame({"y": y, "x": x, "site": [f"s{j}" for j in site]})


def test_draws_mix_over_sigma_by_its_restricted_likelihood() -> None:
    """Its prior is flat in log sigma, so that with clients' spread held no coordinate has a prior that bends.

    Given sigma the coefficients are normal: their mean and covariance, by quadrature over log sigma.
    """
    df = table()
    design, y = np.column_stack([np.ones(len(df)), df.x]), df.y.to_numpy()
    same = (df.site.to_numpy()[:, None] == df.site.to_numpy()).astype(float)
    heights, means, covariances = [], [], []
    grid = np.linspace(-1.8, 0.8, 401)
    for log_sigma in grid:
        covariance = (SD * y.std()) ** 2 * same + np.exp(2 * log_sigma) * np.eye(len(y))
        weighed = np.linalg.solve(covariance, design)
        information = design.T @ weighed
        means.append(np.linalg.solve(information, weighed.T @ y))
        covariances.append(np.linalg.inv(information))
        rest = y - design @ means[-1]
        quadratic = rest @ np.linalg.solve(covariance, rest)
        heights.append(-(np.linalg.slogdet(covariance)[1] + np.linalg.slogdet(information)[1] + quadratic) / 2)
    weights = np.exp(np.array(heights) - max(heights))
    weights /= weights.sum()
    mean = weights @ np.array(means)
    around = np.array(means) - mean
    expected = np.einsum("k,kij->ij", weights, np.array(covariances) + around[:, :, None] * around[:, None])
    fitted = mixed_model(df, "y ~ x + (1 | site)", prior="fixed", sd_0=SD, draws=4000)
    effects = fitted.posterior().posterior["effects"]
    drawn = effects.sel(effect=["Intercept", "x"]).to_numpy().reshape(4000, 2)
    sd = np.diag(expected) ** 0.5
    np.testing.assert_array_less(np.abs(drawn.mean(0) - mean), 4.5 * sd / 4000**0.5)
    np.testing.assert_allclose(drawn.std(0), sd, rtol=4.5 / 8000**0.5)
    drawn_log = np.log(effects.sel(effect="sd(residual)").to_numpy()).ravel()
    spread = (weights @ grid**2 - (weights @ grid) ** 2) ** 0.5
    assert abs(drawn_log.mean() - weights @ grid) < 4.5 * spread / 4000**0.5
    assert (effects.sel(effect="sd(Intercept)") == pytest.approx(SD * y.std())).all()
