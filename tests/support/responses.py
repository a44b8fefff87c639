"""Tables of every response that a mixed model can have, and their log densities by SciPy: the referees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from scipy.special import expit, gammaln, logit
from support.more_responses import MORE
from support.response_case import Case, column


def _gaussian(df: pd.DataFrame, eta: np.ndarray, own: np.ndarray) -> np.ndarray:
    return stats.norm.logpdf(column(df.y, eta), eta, np.exp(own[0]))


def _binomial(df: pd.DataFrame, eta: np.ndarray, own: np.ndarray) -> np.ndarray:
    return stats.binom.logpmf(column(df.y, eta), column(df.n, eta), expit(eta))


def _poisson(df: pd.DataFrame, eta: np.ndarray, own: np.ndarray) -> np.ndarray:
    return stats.poisson.logpmf(column(df.y, eta), np.exp(eta))


def _negative_binomial(df: pd.DataFrame, eta: np.ndarray, own: np.ndarray) -> np.ndarray:
    size = np.exp(own[0])
    return stats.nbinom.logpmf(column(df.y, eta), size, size / (size + np.exp(eta)))


def _zero_inflated(df: pd.DataFrame, eta: np.ndarray, own: np.ndarray) -> np.ndarray:
    y, share = column(df.y, eta), expit(own[0])
    return np.log(share * (y == 0) + (1 - share) * stats.poisson.pmf(y, np.exp(eta)))


def _beta_binomial(df: pd.DataFrame, eta: np.ndarray, own: np.ndarray) -> np.ndarray:
    a, b = np.exp(own[0]) * expit(eta), np.exp(own[0]) * expit(-eta)
    return stats.betabinom.logpmf(column(df.y, eta), column(df.n, eta), a, b)


def _successes(df: pd.DataFrame, eta: np.ndarray, won: np.ndarray, lost: np.ndarray) -> np.ndarray:
    y, n = column(df.y, eta), column(df.n, eta)
    terms = np.where(y == 0, 0.0, y * won) + np.where(y == n, 0.0, (n - y) * lost)
    return gammaln(n + 1) - gammaln(y + 1) - gammaln(n - y + 1) + terms


def _probit(df: pd.DataFrame, eta: np.ndarray, own: np.ndarray) -> np.ndarray:
    return _successes(df, eta, stats.norm.logcdf(eta), stats.norm.logsf(eta))


def _cloglog(df: pd.DataFrame, eta: np.ndarray, own: np.ndarray) -> np.ndarray:
    return _successes(df, eta, stats.expon.logcdf(np.exp(eta)), stats.expon.logsf(np.exp(eta)))


def _nbinom1(df: pd.DataFrame, eta: np.ndarray, own: np.ndarray) -> np.ndarray:
    return stats.nbinom.logpmf(column(df.y, eta), np.exp(eta - own[0]), 1 / (1 + np.exp(own[0])))


def _zero_inflated_negative_binomial(df: pd.DataFrame, eta: np.ndarray, own: np.ndarray) -> np.ndarray:
    zero = column(df.y, eta) == 0
    return np.log(expit(own[1]) * zero + expit(-own[1]) * np.exp(_negative_binomial(df, eta, own)))


def _hurdle(df: pd.DataFrame, eta: np.ndarray, own: np.ndarray) -> np.ndarray:
    y, rate = column(df.y, eta), np.exp(eta)
    above = stats.poisson.logpmf(y, rate) - np.log(-np.expm1(-rate)) + np.log(expit(-own[0]))
    return np.where(y == 0, np.log(expit(own[0])), above)


def _beta(df: pd.DataFrame, eta: np.ndarray, own: np.ndarray) -> np.ndarray:
    return stats.beta.logpdf(column(df.y, eta), np.exp(own[0]) * expit(eta), np.exp(own[0]) * expit(-eta))


def _gamma(df: pd.DataFrame, eta: np.ndarray, own: np.ndarray) -> np.ndarray:
    shape = np.exp(own[0])
    return stats.gamma.logpdf(column(df.y, eta), shape, scale=np.exp(eta) / shape)


def _lognormal(df: pd.DataFrame, eta: np.ndarray, own: np.ndarray) -> np.ndarray:
    return stats.lognorm.logpdf(column(df.y, eta), np.exp(own[0]), scale=np.exp(eta))


def _ordinal(df: pd.DataFrame, eta: np.ndarray, own: np.ndarray) -> np.ndarray:
    edges = np.r_[-np.inf, 0.0, np.cumsum(np.exp(own)), np.inf]
    y = column(df.y, eta).astype(int)
    return np.log(expit(edges[y] - eta) - expit(edges[y - 1] - eta))


def _weibull(df: pd.DataFrame, eta: np.ndarray, own: np.ndarray) -> np.ndarray:
    y, k, event = column(df.y, eta), np.exp(own[0]), column(df.event, eta)
    scale = np.exp(-eta / k)
    died, seen = stats.weibull_min.logpdf(y, k, scale=scale), stats.weibull_min.logsf(y, k, scale=scale)
    return np.where(event == 1, died, seen)


CUTS = np.array([0.2, 0.6])


def _piecewise(df: pd.DataFrame, eta: np.ndarray, own: np.ndarray) -> np.ndarray:
    t, event = column(df.y, eta), column(df.event, eta)
    logs = np.r_[0.0, own]
    spent = np.diff(np.minimum(t[..., None], np.r_[0.0, CUTS, np.inf]), axis=-1)
    return event * (eta + logs[np.searchsorted(CUTS, t)]) - (spent * np.exp(eta[..., None] + logs)).sum(-1)


def _watched(rng: np.random.Generator, t: np.ndarray) -> dict[str, np.ndarray]:
    """Times that are cut off."""
    end = rng.uniform(0.1, 3, len(t))
    return {"y": np.minimum(t, end), "event": (t <= end).astype(int)}


def _trials(rng: np.random.Generator, p: np.ndarray) -> dict[str, np.ndarray]:
    n = rng.integers(1, 12, len(p))
    return {"y": rng.binomial(n, p), "n": n}


def _steps(rng: np.random.Generator, eta: np.ndarray) -> dict[str, np.ndarray]:
    """Times of hazards that step at the cuts, by their inverse."""
    amount, t, logs = rng.exponential(size=len(eta)) * np.exp(-eta), np.zeros(len(eta)), (0.0, 0.4, -0.5)
    for a, first, last in zip(logs, np.r_[0.0, CUTS], np.r_[CUTS, np.inf], strict=True):
        spent = np.minimum(amount, np.exp(a) * (last - first))
        t, amount = t + spent / np.exp(a), amount - spent
    return _watched(rng, t)


def _above_zero(rng: np.random.Generator, rate: np.ndarray) -> np.ndarray:
    """Poisson counts that are not zero, by the inverse of their distribution function."""
    return stats.poisson.ppf(rng.uniform(np.exp(-rate), 1), rate)


def _gaps(edges: list[float]) -> tuple[float, ...]:
    return tuple(np.log(np.diff(edges)))


CASES = {
    case.family: case
    for case in (
        Case("gaussian", (-0.2,), lambda rng, eta: {"y": eta + np.exp(-0.2) * rng.normal(size=len(eta))}, _gaussian),
        Case("binomial", (), lambda rng, eta: _trials(rng, expit(eta)), _binomial, "p(y, n)"),
        Case("binomial-probit", (), lambda rng, eta: _trials(rng, stats.norm.cdf(eta)), _probit, "p(y, n)"),
        Case("binomial-cloglog", (), lambda rng, eta: _trials(rng, -np.expm1(-np.exp(eta))), _cloglog, "p(y, n)",
             intercept=-0.5),
        Case("poisson", (), lambda rng, eta: {"y": rng.poisson(np.exp(eta))}, _poisson),
        Case(
            "negative-binomial", (0.4,),
            lambda rng, eta: {"y": rng.poisson(np.exp(eta) * rng.gamma(np.exp(0.4), np.exp(-0.4), len(eta)))},
            _negative_binomial,
        ),
        Case(
            "nbinom1", (0.3,),
            lambda rng, eta: {"y": rng.poisson(rng.gamma(np.exp(eta - 0.3), np.exp(0.3)))}, _nbinom1, intercept=1.0,
        ),
        Case(
            "zero-inflated-negative-binomial", (0.4, float(logit(0.25))),
            lambda rng, eta: {
                "y": rng.poisson(np.exp(eta) * rng.gamma(np.exp(0.4), np.exp(-0.4), len(eta)))
                * (rng.random(len(eta)) > 0.25)
            },
            _zero_inflated_negative_binomial, intercept=1.0,
        ),
        Case(
            "hurdle-poisson", (float(logit(0.3)),),
            lambda rng, eta: {"y": _above_zero(rng, np.exp(eta)) * (rng.random(len(eta)) > 0.3)}, _hurdle,
        ),
        Case(
            "beta", (1.2,),
            lambda rng, eta: {"y": rng.beta(np.exp(1.2) * expit(eta), np.exp(1.2) * expit(-eta)).clip(1e-9, 1 - 1e-9)},
            _beta,
        ),
        Case(
            "zero-inflated-poisson", (float(logit(0.25)),),
            lambda rng, eta: {"y": rng.poisson(np.exp(eta)) * (rng.random(len(eta)) > 0.25)}, _zero_inflated,
        ),
        Case(
            "beta-binomial", (1.2,),
            lambda rng, eta: _trials(rng, rng.beta(np.exp(1.2) * expit(eta), np.exp(1.2) * expit(-eta))),
            _beta_binomial, "p(y, n)",
        ),
        Case("gamma", (0.7,), lambda rng, eta: {"y": rng.gamma(np.exp(0.7), np.exp(eta - 0.7))}, _gamma),
        Case(
            "lognormal", (-0.2,), lambda rng, eta: {"y": np.exp(eta + np.exp(-0.2) * rng.normal(size=len(eta)))},
            _lognormal,
        ),
        Case(
            "ordinal", _gaps([0.0, 1.2, 2.0]),
            lambda rng, eta: {"y": 1 + (eta + rng.logistic(size=len(eta)) > np.c_[[0.0, 1.2, 2.0]]).sum(0)}, _ordinal,
        ),
        Case(
            "exponential", (0.4, -0.5), _steps, _piecewise, how={"event": "event", "cuts": "0.2, 0.6"}
        ),
        Case(
            "weibull", (0.3,),
            lambda rng, eta: _watched(rng, rng.weibull(np.exp(0.3), len(eta)) * np.exp(-eta / np.exp(0.3))), _weibull,
            how={"event": "event"},
        ),
        *MORE,
    )
}  # fmt: skip


def quadrature(theta: np.ndarray, df: pd.DataFrame, case: Case, nodes: int = 41) -> float:
    """Minus the marginal log likelihood by adaptive Gauss-Hermite quadrature around each place's mode, whose curvature
    is a difference of heights.

    Args:
        theta: intercept, slope, log sd, own numbers.
        df: the table.
        case: its response.
        nodes: of the rule; 1 is Laplace's approximation.
    """
    if np.abs(theta).max() > 8:
        return 1e6
    at, weights = np.polynomial.hermite_e.hermegauss(nodes)
    (b0, b1, log_sd), own, total = theta[:3], theta[3:], 0.0
    sd, h = np.exp(log_sd), 1e-3
    for _, rows in df.groupby("site"):
        off = (b0 + b1 * rows.x.values)[:, None]

        def joint(u: np.ndarray, rows: pd.DataFrame = rows, off: np.ndarray = off) -> np.ndarray:
            return case.log_density(rows, off + sd * u, own).sum(0) - 0.5 * u**2 - 0.5 * np.log(2 * np.pi)

        grid = np.linspace(-6, 6, 25)
        u = grid[np.argmax(joint(grid))]
        for _ in range(30):
            low, middle, high = joint(u + h * np.array([-1.0, 0.0, 1.0]))
            bend = max((2 * middle - low - high) / h**2, 1e-2)
            step = np.clip((high - low) / (2 * h) / bend, -1, 1)
            u += step
            if abs(step) < 1e-7:
                break
        edges = joint(u + 0.02 * np.array([-2.0, -1.0, 0.0, 1.0, 2.0]))
        bend = (edges @ [1, -16, 30, -16, 1]) / (12 * 0.02**2)
        inside = joint(u + at / np.sqrt(bend)) + 0.5 * at**2
        total += np.log((weights * np.exp(inside - edges[2])).sum()) + edges[2] - 0.5 * np.log(bend)
    return -total


def hessian(f: Callable[[np.ndarray], float], at: np.ndarray, h: float = 1e-3) -> np.ndarray:
    """Second differences, each asked for once."""
    eye, curvature = h * np.eye(len(at)), np.zeros((len(at), len(at)))
    height = f(at)
    for k, a in enumerate(eye):
        curvature[k, k] = (f(at + 2 * a) - 2 * height + f(at - 2 * a)) / (4 * h * h)
        for m, b in enumerate(eye[:k]):
            curvature[k, m] = curvature[m, k] = (f(at + a + b) - f(at + a - b) - f(at - a + b) + f(at - a - b)) / (
                4 * h * h
            )
    return curvature


def referee_point(case: Case, fit: Any) -> np.ndarray:
    """A fitted mixed model's intercept, slope, log sd and own numbers, as :func:`quadrature` takes them."""
    table = fit.summary().table.set_index("effect").estimate
    own = [fit.run.shared[f"effects.{k}"].reshape(-1).numpy() for k in fit.method.response_family.starts]
    own = [own[0] + np.log(fit.method.response_family.unit), *own[1:]] if case.family == "student-t" else own
    first = -table["1 | 2"] if case.family == "ordinal" else table["Intercept"]
    return np.r_[first, table["x"], np.log(table["sd(Intercept)"]), *own]
