"""Tables with groups inside clients and groups of clients, and their likelihoods: the referees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

try:
    from support.responses import Case
except ModuleNotFoundError:  # as a script, beside it
    from responses import Case

#: names of the levels' standard deviations in a table of effects
SDS = {"region": "sd(Intercept | region)", "site": "sd(Intercept)", "patient": "sd(Intercept | patient)"}
#: strength of pastes, two tests of each of three casks of ten batches (Davies, 1947; lme4's Pastes)
PASTES = pd.DataFrame(
    {
        "strength": np.array([
            62.8, 62.6, 60.1, 62.3, 62.7, 63.1, 60.0, 61.4, 57.5, 56.9, 61.1, 58.9, 58.7, 57.5, 63.9, 63.1, 65.4, 63.7,
            57.1, 56.4, 56.9, 58.6, 64.7, 64.5, 55.1, 55.1, 54.7, 54.2, 58.8, 57.5, 63.4, 64.9, 59.3, 58.1, 60.5, 60.0,
            62.5, 62.6, 61.0, 58.7, 56.9, 57.7, 59.2, 59.4, 65.2, 66.0, 64.8, 64.1, 54.8, 54.8, 64.0, 64.0, 57.7, 56.8,
            58.3, 59.3, 59.2, 59.2, 58.9, 56.6,
        ]),
        "batch": np.repeat(list("ABCDEFGHIJ"), 6), "cask": np.tile(np.repeat(list("abc"), 2), 10),
    }
)  # fmt: skip


def table(
    case: Case, regions: int = 1, sites: int = 8, patients: int = 3, rows: int = 4, seed: int = 1,
    sds: tuple[float, float, float] = (0.7, 0.8, 0.6),
) -> pd.DataFrame:  # fmt: skip
    """So many sites in each region, patients at each site (one more or less) and rows of each patient.

    Columns region, site, patient (names that other sites have, too), x, the response's, and the true intercept of each
    row's region, site and patient.
    """
    rng = np.random.default_rng(seed)
    cells = [
        (r, s, p)
        for r in range(regions)
        for s in range(sites)
        for p in range(patients + (s % 3 - 1 if patients > 1 else 0))
        for _ in range(rows + p % 2)
    ]
    r, s, p = np.array(cells).T
    site = r * sites + s
    effects = [
        sd * rng.normal(size=size) for sd, size in zip(sds, (regions, regions * sites, 1000 * len(r)), strict=True)
    ]
    if regions == 1:
        effects[0] = np.zeros(1)
    of = {"region_effect": effects[0][r], "site_effect": effects[1][site]}
    of["patient_effect"] = effects[2][site * 100 + p] if patients > 1 else np.zeros(len(r))
    x = rng.normal(size=len(r))
    eta = case.intercept + 0.7 * x + sum(of.values())
    names = {"region": [f"r{k}" for k in r], "site": [f"s{k:03d}" for k in site], "patient": [f"p{k}" for k in p]}
    return case.complete(pd.DataFrame({**case.draw(rng, eta), "x": x, **names, **of}))


def point(case: Case, fit: Any, levels: tuple[str, ...]) -> np.ndarray:
    """A fitted model's intercept, slope, log sd of each level and own numbers."""
    effects = fit.summary().table.set_index("effect").estimate
    first = -effects["1 | 2"] if case.family == "ordinal" else effects["Intercept"]
    sds = [np.log(effects[SDS[level]]) for level in levels]
    return np.concatenate([[first, effects["x"]], sds, own_numbers(fit)])


def own_numbers(fit: Any) -> np.ndarray:
    """A fitted response's own numbers, a log scale in the units of y."""
    family = fit.method.response_family
    own = [fit.run.shared[f"effects.{k}"].reshape(-1).numpy() for k in family.starts]
    units = [np.log(family.unit) if name == "log_scale" else 0.0 for name in family.starts]
    return np.concatenate([np.zeros(0), *(values + unit for values, unit in zip(own, units, strict=True))])


def log_likelihood(
    theta: np.ndarray, df: pd.DataFrame, case: Case, levels: tuple[str, ...], step: float = 0.2, most: float = 7.0
) -> float:
    """By sums over an even grid of each level's effects: of smooth integrands, no narrower than the step, exact.

    Args:
        theta: as :func:`point`.
        df: the table.
        case: its response.
        levels: of random intercepts, of region, site and patient.
        step: of the grid, in standard deviations.
        most: where it ends, in standard deviations.
    """
    at = np.arange(-most, most + step / 2, step)
    rule = {level: (at, np.log(step) - 0.5 * at**2 - 0.5 * np.log(2 * np.pi)) for level in levels}
    sd = dict(zip(levels, np.exp(theta[2 : 2 + len(levels)]), strict=True))
    single_node = np.zeros(1), np.zeros(1)
    (outer, outer_w), (middle, middle_w), (inner, inner_w) = (
        rule.get(k, single_node) for k in ("region", "site", "patient")
    )
    total, own = 0.0, theta[2 + len(levels) :]
    for _, region in df.groupby("region" if "region" in levels else np.zeros(len(df))):
        of_region = np.zeros(len(outer))
        for _, site in region.groupby("site"):
            of_site = np.zeros((len(outer), len(middle)))
            for _, rows in site.groupby("patient" if "patient" in levels else np.zeros(len(site))):
                eta = (theta[0] + theta[1] * rows.x.to_numpy())[:, None, None, None]
                eta = eta + sd.get("region", 0.0) * outer[:, None, None] + sd["site"] * middle[:, None]
                eta = eta + sd.get("patient", 0.0) * inner
                with np.errstate(divide="ignore"):
                    terms = case.log_density(rows, eta, own).sum(0)
                of_site += logsumexp(terms + inner_w, axis=-1)
            of_region += logsumexp(of_site + middle_w, axis=-1)
        total += float(logsumexp(of_region + outer_w))
    return total


def dense(df: pd.DataFrame, mean: np.ndarray, levels: dict[str, np.ndarray], residual: np.ndarray) -> float:
    """The log density of y with random effects of 1 and x, {column of groups: covariance (1, 1) or (2, 2)}."""
    v = np.diag(residual)
    for column, covariance in levels.items():
        group = df[column].to_numpy(dtype=object)
        z = np.column_stack([np.ones(len(df)), df.x])[:, : len(covariance)]
        v = v + (group[:, None] == group) * (z @ covariance @ z.T)
    return float(multivariate_normal(mean, v).logpdf(df.y))
