"""Tables of mixed models, fits, and statsmodels as the referee."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import torch
from scipy.stats import multivariate_normal

from hierfl.data.formula.federate import from_formula
from hierfl.inference import fit
from hierfl.inference.run.result import Run
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.models.mixed_effects.report.summary import effects_table

#: yields of dyestuff, six batches of five samples (Davies, 1947; lme4's Dyestuff)
DYESTUFF = pd.DataFrame(
    {
        "Yield": np.array([
            1545, 1440, 1440, 1520, 1580, 1540, 1555, 1490, 1560, 1495, 1595, 1550, 1605, 1510, 1560, 1445, 1440, 1595,
            1465, 1545, 1595, 1630, 1515, 1635, 1625, 1520, 1455, 1450, 1480, 1445,
        ], dtype=float),
        "Batch": np.repeat(list("ABCDEF"), 5),
    }
)  # fmt: skip


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


def fitted(df: pd.DataFrame, formula: str, rounds: int = 100, known_se: str | None = None, **settings) -> Run:
    fed, design = from_formula(df, formula, known_se=known_se)
    method = MixedEffects(design, **{"draws": 0, "population": "ml", **settings})
    return fit(method, fed, rounds=rounds, chunk=fed.clients, dtype=torch.float64, progress=False)


def estimates(run: Run) -> pd.Series:
    """What a table of effects has, by name."""
    return effects_table(run.fitted)[0].set_index("effect")["estimate"]


def covariance(run: Run) -> np.ndarray:
    """Of the random effects, in the table's units."""
    method = run.fitted.method
    turn = method.groupings["root"].to_users(run.shared["effects.root"])
    root = (turn @ method.covariance.matrix(run.shared["effects.root"])).numpy()
    return root @ root.T


def random_effects(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Means (J, q) and covariances (J, q, q) of the clients' random effects, in the table's units."""
    method, mean, root = run.fitted.method, run.personal["b_mean"], run.personal["b_root"]
    turn = method.groupings["root"].to_users(mean)
    return (mean @ turn.T).numpy(), (turn @ root @ root.mT @ turn.T).numpy()


def referee(df: pd.DataFrame, random: str, reml: bool = False):
    import statsmodels.formula.api as smf

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = smf.mixedlm("y ~ x", df, groups=df.site, re_formula=random)
        return model.fit(reml=reml, method=["lbfgs", "bfgs"], gtol=1e-9)


def log_likelihood(df: pd.DataFrame, beta: np.ndarray, cov: np.ndarray, sigma: float, random: tuple[str, ...]) -> float:
    """Of y ~ 1 + x with random columns of 1 and x, by the multivariate normal: the referee."""
    total = 0.0
    for _, rows in df.groupby("site"):
        both = {"1": np.ones(len(rows)), "x": rows.x.to_numpy()}
        z = np.column_stack([both[name] for name in random])
        v = z @ cov @ z.T + sigma**2 * np.eye(len(rows))
        total += multivariate_normal(beta[0] + beta[1] * rows.x.to_numpy(), v).logpdf(rows.y.to_numpy())
    return float(total)
