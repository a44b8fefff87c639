"""Tables of mixed models, fits, and statsmodels as the referee."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import torch

from hierfl.data.formula.federate import from_formula
from hierfl.inference import fit
from hierfl.inference.run.result import Run
from hierfl.models.mixed_effects.method import MixedEffects


def table(places: int = 40, seed: int = 0, slope: bool = True) -> pd.DataFrame:
    """2 to 60 rows a place, intercepts and slopes that go together, raw units."""
    rng = np.random.default_rng(seed)
    n = rng.integers(2, 61, places)
    who = np.repeat(np.arange(places), n)
    x = rng.normal(2, 1.5, len(who))
    b = rng.multivariate_normal([0, 0], [[1.0, 0.3], [0.3, 0.5 if slope else 0.0]], places) if slope else None
    effect = b[who, 0] + b[who, 1] * x if b is not None else rng.normal(size=places)[who]
    y = 3 + 0.7 * x + effect + 0.8 * rng.normal(size=len(who))
    return pd.DataFrame({"y": y, "x": x, "site": [f"s{j:02d}" for j in who]})


def fitted(df: pd.DataFrame, formula: str, rounds: int = 30, error: str | None = None, **settings) -> Run:
    fed, design = from_formula(df, formula, error=error)
    method = MixedEffects(design, **{"draws": 0, **settings})
    return fit(method, fed, rounds=rounds, chunk=fed.clients, dtype=torch.float64, progress=False)


def covariance(run: Run) -> np.ndarray:
    shared = run.shared
    sd = shared["effects.log_sd"].exp()
    below = shared.get("effects.corr", torch.zeros(1))[0]
    correlation = below / (1 + below**2).sqrt()
    q = len(sd)
    rho = torch.eye(q, dtype=sd.dtype) + (correlation * (1 - torch.eye(q)) if "effects.corr" in shared else 0)
    return (sd[:, None] * sd * rho).numpy()


def referee(df: pd.DataFrame, random: str):
    import statsmodels.formula.api as smf

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return smf.mixedlm("y ~ x", df, groups=df.site, re_formula=random).fit(reml=False, method=["lbfgs", "bfgs"])
