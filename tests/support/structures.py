"""Simulations with known truth of structures and responses of mixed models, and the calls that fit them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from scipy.special import logit

Random = np.random.Generator


@dataclass(frozen=True)
class Cell:
    """What is simulated and fitted.

    Attributes:
        name: of the cell.
        formula: of the model.
        simulate: the table, from random numbers.
        truth: true value of each effect in the summary's table.
        how: more arguments of a mixed model.
    """

    name: str
    formula: str
    simulate: Callable[[Random], pd.DataFrame]
    truth: Mapping[str, float]
    how: Mapping[str, Any] = field(default_factory=dict)

    def table(self, seed: int) -> pd.DataFrame:
        """Of a replicate."""
        return self.simulate(np.random.default_rng([seed, 52]))


def effects(rng: Random, sd: float, names: np.ndarray) -> np.ndarray:
    """Normal effects of groups, a value for each row."""
    _, at = np.unique(names, return_inverse=True)
    return sd * rng.normal(size=at.max() + 1)[at]


def rows(sites: int, each: int) -> pd.DataFrame:
    """Columns site, a name for each of ``sites`` sites, and x = 0; ``each`` rows at a site."""
    site = np.repeat([f"s{k:02d}" for k in range(sites)], each)
    return pd.DataFrame({"site": site, "x": 0.0})


def one_level(rng: Random) -> pd.DataFrame:
    """y = 1 + x / 2 + site + noise."""
    df = rows(12, 8).assign(x=rng.normal(size=96))
    return df.assign(y=1 + 0.5 * df.x + effects(rng, 0.8, df.site.to_numpy()) + rng.normal(size=len(df)))


def _eta(rng: Random, sites: int, each: int) -> pd.DataFrame:
    """Columns site, x and eta = 1 + x / 2 + site, of standard deviation 0.8."""
    df = rows(sites, each).assign(x=rng.normal(size=sites * each))
    return df.assign(eta=1 + 0.5 * df.x + effects(rng, 0.8, df.site.to_numpy()))


def nested(rng: Random) -> pd.DataFrame:
    """Classes of four rows in four schools in ten districts, the clients."""
    district, school, part = (np.repeat(np.arange(n), 640 // n) for n in (10, 40, 160))
    df = pd.DataFrame({"site": district, "school": school, "part": part}).map("g{:03d}".format)
    df = df.assign(x=rng.normal(size=len(df)))
    random = sum(effects(rng, sd, df[name].to_numpy()) for sd, name in ((0.8, "site"), (0.6, "school"), (0.5, "part")))
    return df.assign(y=1 + 0.5 * df.x + random + rng.normal(size=len(df)))


def crossed_inside(rng: Random) -> pd.DataFrame:
    """Six nurses by six items at each of ten sites, all pairs once."""
    site, nurse, item = (part.ravel() for part in np.indices((10, 6, 6)))
    df = pd.DataFrame({"site": site, "nurse": nurse, "item": item}).map("g{:02d}".format)
    df = df.assign(x=rng.normal(size=len(df)))
    random = effects(rng, 0.8, df.site.to_numpy())
    random += effects(rng, 0.6, (df.site + df.nurse).to_numpy()) + effects(rng, 0.5, (df.site + df.item).to_numpy())
    return df.assign(y=1 + 0.5 * df.x + random + rng.normal(size=len(df)))


def shared_items(rng: Random) -> pd.DataFrame:
    """Twenty persons by fifteen items, all pairs once."""
    site, item = (part.ravel() for part in np.indices((20, 15)))
    df = pd.DataFrame({"site": site, "item": item}).map("g{:02d}".format).assign(x=rng.normal(size=300))
    random = effects(rng, 0.8, df.site.to_numpy()) + effects(rng, 0.6, df.item.to_numpy())
    return df.assign(y=1 + 0.5 * df.x + random + rng.normal(size=len(df)))


def two_spreads(rng: Random) -> pd.DataFrame:
    """Two arms of standard deviations 1 and exp(0.5)."""
    df = _eta(rng, 15, 12)
    arm = np.tile(["a", "b"], len(df) // 2)
    return df.assign(arm=arm, y=df.eta + np.exp(0.5 * (arm == "b")) * rng.normal(size=len(df)))


def own_spreads(rng: Random) -> pd.DataFrame:
    """Thirty sites, log standard deviations of whose residuals have one of 0.4."""
    df = _eta(rng, 30, 12)
    spread = effects(rng, 0.4, df.site.to_numpy())
    return df.assign(y=df.eta + np.exp(spread) * rng.normal(size=len(df)))


def zeros_by_arm(rng: Random) -> pd.DataFrame:
    """Poisson counts, and p(zero) of 0.2 and 0.4 in two arms."""
    df = _eta(rng, 20, 15)
    arm = np.tile(["a", "b", "a"], len(df) // 3)
    keep = rng.random(len(df)) > np.where(arm == "b", 0.4, 0.2)
    return df.assign(arm=arm, y=np.where(keep, rng.poisson(np.exp(df.eta)), 0))


def serial(rng: Random) -> pd.DataFrame:
    """Twelve visits of each of fifteen clients, rho 0.5 from one to the next."""
    df = _eta(rng, 15, 12)
    noise = rng.normal(size=(15, 12))
    for t in range(1, 12):
        noise[:, t] = 0.5 * noise[:, t - 1] + np.sqrt(0.75) * noise[:, t]
    return df.assign(t=np.tile(np.arange(12), 15), y=df.eta + noise.ravel())


def long_tails(rng: Random) -> pd.DataFrame:
    """Student's t noise of four degrees of freedom."""
    df = _eta(rng, 15, 20)
    return df.assign(y=df.eta + rng.standard_t(4, len(df)))


def above_zero(rng: Random) -> pd.DataFrame:
    """Poisson counts of which zeros are left out."""
    df = _eta(rng, 15, 12)
    rate = np.exp(df.eta)
    return df.assign(y=stats.poisson.ppf(rng.uniform(np.exp(-rate), 1), rate))


def times(rng: Random) -> pd.DataFrame:
    """Weibull times of shape 1.3, cut off at random."""
    df = _eta(rng, 15, 20)
    t, end = rng.weibull(1.3, len(df)) * np.exp(-df.eta / 1.3), rng.uniform(0.1, 3, len(df))
    return df.assign(y=np.minimum(t, end), event=(t <= end).astype(int))


SITE = "sd(Intercept)"
COMMON = {"Intercept": 1.0, "x": 0.5, SITE: 0.8}
CELLS = [
    Cell("gaussian", "y ~ x + (1 | site)", one_level, {**COMMON, "sd(residual)": 1.0}),
    Cell("nested", "y ~ x + (1 | site/school/part)", nested,
         {**COMMON, "sd(Intercept | school)": 0.6, "sd(Intercept | school:part)": 0.5, "sd(residual)": 1.0}),
    Cell("crossed inside", "y ~ x + (1 | site) + (1 | site:nurse) + (1 | site:item)", crossed_inside,
         {**COMMON, "sd(Intercept | nurse)": 0.6, "sd(Intercept | item)": 0.5, "sd(residual)": 1.0}),
    Cell("shared items", "y ~ x + (1 | site) + (1 | item)", shared_items,
         {**COMMON, "sd(Intercept | item)": 0.6, "sd(residual)": 1.0}, {"client": "site"}),
    Cell("dispersion", "y ~ x + (1 | site)", two_spreads,
         {**COMMON, "dispersion:Intercept": 0.0, "dispersion:arm[b]": 0.5}, {"dispersion": "~ arm"}),
    Cell("own spreads", "y ~ x + (1 | site)", own_spreads,
         {**COMMON, "sd(dispersion:Intercept)": 0.4, "dispersion:Intercept": 0.0}, {"dispersion": "~ (1 | site)"}),
    Cell("zeros by arm", "y ~ x + (1 | site)", zeros_by_arm,
         {**COMMON, "zero_inflation:Intercept": float(logit(0.2)),
          "zero_inflation:arm[b]": float(logit(0.4) - logit(0.2))},
         {"family": "zero-inflated-poisson", "zero_inflation": "~ arm"}),
    Cell("ar1", "y ~ x + (1 | site)", serial, {**COMMON, "sd(residual)": 1.0, "rho(residual)": 0.5},
         {"correlation": "ar1(t)"}),
    Cell("student-t", "y ~ x + (1 | site)", long_tails, {**COMMON, "scale": 1.0, "df": 4.0}, {"family": "student-t"}),
    Cell("truncated-poisson", "y ~ x + (1 | site)", above_zero, COMMON, {"family": "truncated-poisson"}),
    Cell("cox", "y ~ x + (1 | site)", times, {"x": 0.5, SITE: 0.8},
         {"family": "cox", "event": "event", "intervals": "10"}),
]  # fmt: skip
