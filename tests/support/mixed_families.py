"""Tables of counts and of firms, and statsmodels' fits."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import torch
from scipy.special import expit

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
    run = fit(
        MixedEffects(design, population="ml", draws=0), fed, 40, dtype=torch.float64, progress=False, evaluate_every=40
    )
    return run, mixedlm("invest ~ value + capital", df, "firm")
