"""Student's t, counts above zero and a longer tail: tables, and log densities by SciPy."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats
from scipy.special import expit, gammaln, logit
from support.response_case import Case, column


def _student_t(df: pd.DataFrame, eta: np.ndarray, own: np.ndarray) -> np.ndarray:
    return stats.t.logpdf(column(df.y, eta), 1 + np.exp(own[1]), eta, np.exp(own[0]))


def _truncated_poisson(df: pd.DataFrame, eta: np.ndarray, own: np.ndarray) -> np.ndarray:
    rate = np.exp(eta)
    return stats.poisson.logpmf(column(df.y, eta), rate) - np.log(-np.expm1(-rate))


def _truncated_negative_binomial(df: pd.DataFrame, eta: np.ndarray, own: np.ndarray) -> np.ndarray:
    size, y = np.exp(own[0]), column(df.y, eta)
    p = size / (size + np.exp(eta))
    return stats.nbinom.logpmf(y, size, p) - stats.nbinom.logsf(0, size, p)


def _hurdle_negative_binomial(df: pd.DataFrame, eta: np.ndarray, own: np.ndarray) -> np.ndarray:
    above = _truncated_negative_binomial(df, eta, own) + np.log(expit(-own[1]))
    return np.where(column(df.y, eta) == 0, np.log(expit(own[1])), above)


def _generalised_poisson(df: pd.DataFrame, eta: np.ndarray, own: np.ndarray) -> np.ndarray:
    """As Consul and Famoye write it, of theta and lambda."""
    root, y = np.sqrt(1 + np.exp(own[0])), column(df.y, eta)
    theta, passed = np.exp(eta) / root, 1 - 1 / root
    return np.log(theta) + (y - 1) * np.log(theta + passed * y) - theta - passed * y - gammaln(y + 1)


def _families(rng: np.random.Generator, eta: np.ndarray, dispersion: float) -> np.ndarray:
    """Generalised Poisson counts by the inverse of their distribution function, a sum of probabilities."""
    y = np.arange(3000.0)
    theta, passed = np.exp(eta)[:, None] / np.sqrt(1 + dispersion), 1 - 1 / np.sqrt(1 + dispersion)
    log_p = np.log(theta) + (y - 1) * np.log(theta + passed * y) - theta - passed * y - gammaln(y + 1)
    return (np.exp(log_p).cumsum(1) < rng.random(len(eta))[:, None]).sum(1)


def _above_zero(rng: np.random.Generator, eta: np.ndarray, size: float) -> np.ndarray:
    """Negative binomial counts that are not zero, by the inverse of their distribution function."""
    p = size / (size + np.exp(eta))
    return stats.nbinom.ppf(rng.uniform(p**size, 1), size, p)


def _times(rng: np.random.Generator, eta: np.ndarray) -> dict[str, np.ndarray]:
    """Weibull times that are cut off."""
    t, end = rng.weibull(1.3, len(eta)) * np.exp(-eta / 1.3), rng.uniform(0.1, 3, len(eta))
    return {"y": np.minimum(t, end), "event": (t <= end).astype(int)}


def _thirds(df: pd.DataFrame) -> dict[str, float]:
    """Cuts at thirds of the event times, by interpolation in half octaves: a site's events five by five at least."""
    edges, counts = np.arange(-40, 41) / 2, np.zeros(80)
    for _, times in df.y[df.event == 1].groupby(df.site):
        places, pools = np.sort(np.digitize(np.log2(times), edges) - 1), list[list[int]]([[]])
        for bin_index in np.unique(places):
            if len(pools[-1]) >= 5:
                pools.append([])
            pools[-1] += [bin_index] * int((places == bin_index).sum())
        if len(pools) > 1 and len(pools[-1]) < 5:
            left = pools.pop()
            pools[-1] += left
        for pool in pools:
            counts[pool[(len(pool) - 1) // 2]] += len(pool)
    thirds = np.interp(counts.sum() * np.array([1, 2]) / 3, np.r_[0, counts.cumsum()], edges)
    return {"first": 2 ** thirds[0], "second": 2 ** thirds[1]}


def _cox(df: pd.DataFrame, eta: np.ndarray, own: np.ndarray) -> np.ndarray:
    t, event, cuts = column(df.y, eta), column(df.event, eta), np.array([df["first"].iloc[0], df["second"].iloc[0]])
    logs = np.r_[0.0, own]
    spent = np.diff(np.minimum(t[..., None], np.r_[0.0, cuts, np.inf]), axis=-1)
    return event * (eta + logs[np.searchsorted(cuts, t)]) - (spent * np.exp(eta[..., None] + logs)).sum(-1)


MORE = (
    Case("student-t", (-0.2, 0.8), lambda rng, eta: {"y": eta + np.exp(-0.2) * rng.standard_t(np.exp(1.2), len(eta))},
         _student_t),
    Case("truncated-poisson", (), lambda rng, eta: {"y": stats.poisson.ppf(rng.uniform(np.exp(-np.exp(eta)), 1),
         np.exp(eta))}, _truncated_poisson),
    Case("truncated-negative-binomial", (-1.0,), lambda rng, eta: {"y": _above_zero(rng, eta, np.exp(-1.0))},
         _truncated_negative_binomial, intercept=1.0),
    Case("hurdle-negative-binomial", (-1.0, float(logit(0.3))),
         lambda rng, eta: {"y": _above_zero(rng, eta, np.exp(-1.0)) * (rng.random(len(eta)) > 0.3)},
         _hurdle_negative_binomial, intercept=1.0),
    Case("generalised-poisson", (0.3,), lambda rng, eta: {"y": _families(rng, eta, np.exp(0.3))},
         _generalised_poisson, intercept=1.0),
    Case("cox", (0.4, -0.5), _times, _cox, how={"event": "event", "intervals": "3"}, known=_thirds),
)  # fmt: skip
