"""A table with crossed categories, and generalised least squares with dense matrices."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from patsy import dmatrix

from hierfl.models.mixed_effects.fitted_model import FittedMixedModel

#: of the fixed effects of the tests
FIXED = "arm * sex + arm:x + x"


def arms(seed: int = 3, sites: int = 12, rows: int = 25) -> pd.DataFrame:
    """Unbalanced arms, sexes and a covariate far from zero at some sites, with responses of several families."""
    rng = np.random.default_rng(seed)
    n = sites * rows
    df = pd.DataFrame({
        "site": np.repeat([f"s{k:02d}" for k in range(sites)], rows),
        "arm": rng.choice(["a", "b", "c"], n, p=[0.5, 0.3, 0.2]),
        "sex": rng.choice(["f", "m"], n, p=[0.7, 0.3]),
        "x": rng.normal(3, 1, n),
    })  # fmt: skip
    eta = np.repeat(rng.normal(0, 0.7, sites), rows) + 0.6 * (df.arm == "b") + 0.3 * df.x
    df["y"] = eta + rng.normal(0, 1, n)
    df["k"] = rng.poisson(np.exp(eta - 1))
    df["t"] = rng.exponential(np.exp(-eta))
    df["seen"] = (df.t < 0.4).astype(int)
    df["t"] = df.t.clip(upper=0.4)
    return df


class Dense(NamedTuple):
    """Generalised least squares.

    Attributes:
        x: (n, p).
        v: the response's covariance, (n, n).
        beta: (p,).
        covariance: of beta, (p, p).
    """

    x: np.ndarray
    v: np.ndarray
    beta: np.ndarray
    covariance: np.ndarray

    def f(self, contrast: np.ndarray) -> float:
        """F of contrasts (q, p) being zero."""
        away = contrast @ self.beta
        return float(away @ np.linalg.solve(contrast @ self.covariance @ contrast.T, away) / len(contrast))


def dense(fit: FittedMixedModel, df: pd.DataFrame, formula: str, response: str = "y") -> Dense:
    """Of a random intercept of sites, with the fit's standard deviations and a design by patsy."""
    sd = fit.summary().table.set_index("effect").estimate
    same = (df.site.to_numpy()[:, None] == df.site.to_numpy()).astype(float)
    v = sd["sd(Intercept)"] ** 2 * same + sd["sd(residual)"] ** 2 * np.eye(len(df))
    x = np.asarray(dmatrix(formula, df))
    weighted = np.linalg.solve(v, x)
    covariance = np.linalg.inv(x.T @ weighted)
    return Dense(x, v, covariance @ weighted.T @ df[response].to_numpy(), covariance)
