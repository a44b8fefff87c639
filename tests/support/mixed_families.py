"""Tables of counts and of firms, and their exact likelihoods."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import torch
from scipy.special import expit, gammaln

from hierfl.data.formula.federate import from_formula
from hierfl.inference import fit
from hierfl.inference.run.result import Run
from hierfl.models.mixed_effects.method import MixedEffects


def counts(family: str, places: int = 30, seed: int = 1) -> pd.DataFrame:
    """2 to 60 rows a place, a random intercept of standard deviation 0.8."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(places), rng.integers(2, 61, places))
    x = rng.normal(size=len(who))
    eta = -0.3 + 0.7 * x + 0.8 * rng.normal(size=places)[who]
    y = rng.random(len(who)) < expit(eta) if family == "binomial" else rng.poisson(np.exp(eta))
    return pd.DataFrame({"y": y.astype(float), "x": x, "site": [f"s{j:02d}" for j in who]})


def quadrature(theta: np.ndarray, df: pd.DataFrame, family: str) -> float:
    """Minus the marginal log likelihood by adaptive Gauss-Hermite quadrature around each place's mode: the referee."""
    if np.abs(theta).max() > 5:
        return 1e6
    nodes, weights = np.polynomial.hermite_e.hermegauss(41)
    (b0, b1, log_sd), total = theta, 0.0
    sd = np.exp(log_sd)
    for _, rows in df.groupby("site"):
        off, y = b0 + b1 * rows.x.values, rows.y.values

        def joint(u: np.ndarray, off: np.ndarray = off, y: np.ndarray = y) -> np.ndarray:
            eta = off[:, None] + sd * u
            if family == "binomial":
                terms = y[:, None] * eta - np.logaddexp(0, eta)
            else:
                terms = y[:, None] * eta - np.exp(eta) - gammaln(y + 1)[:, None]
            return terms.sum(0) - 0.5 * u**2 - 0.5 * np.log(2 * np.pi)

        u = 0.0
        for _ in range(50):
            mean = expit(off + sd * u) if family == "binomial" else np.exp(off + sd * u)
            weight = mean * (1 - mean) if family == "binomial" else mean
            bend = sd**2 * weight.sum() + 1
            u += np.clip((sd * (y - mean).sum() - u) / bend, -1, 1)
        top = joint(np.array([u]))[0]
        inside = weights * np.exp(0.5 * nodes**2 + joint(u + nodes / np.sqrt(bend)) - top)
        total += np.log(inside.sum()) + top - 0.5 * np.log(bend)
    return -total


def hessian(df: pd.DataFrame, family: str, at: np.ndarray, h: float = 1e-3) -> np.ndarray:
    eye = h * np.eye(len(at))
    return np.array(
        [
            [
                sum(s * t * quadrature(at + s * a + t * b, df, family) for s in (1, -1) for t in (1, -1)) / (4 * h * h)
                for b in eye
            ]
            for a in eye
        ]
    )


def mixedlm(formula: str, df: pd.DataFrame, groups: str):
    import statsmodels.formula.api as smf

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return smf.mixedlm(formula, df, groups=df[groups]).fit(reml=False, method=["powell", "lbfgs"])


def investments() -> tuple[Run, object]:
    """Grunfeld's (1958) investments of eleven firms over twenty years, which statsmodels has: ours, and theirs."""
    from statsmodels.datasets import grunfeld

    df = grunfeld.load_pandas().data
    fed, design = from_formula(df, "invest ~ 1 + value + capital + (1 | firm)")
    run = fit(MixedEffects(design, draws=0), fed, 40, dtype=torch.float64, progress=False, evaluate_every=40)
    return run, mixedlm("invest ~ value + capital", df, "firm")
