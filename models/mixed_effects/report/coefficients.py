"""Coefficients: their covariance, degrees of freedom, tests and intervals, in the table's units.

A gaussian response has (X^T V^-1 X)^-1 and Satterthwaite's degrees of freedom, or Kenward and Roger's of both. Others
have their covariance at what :mod:`.restricted` estimates, where that was asked for, with Satterthwaite's degrees of
freedom there, and no more than :mod:`.containment` gives; a coefficient that is learned from rows has infinitely many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from hierfl.data.formula.units import INTERCEPT
from hierfl.inference.state import State

from ..likelihood import containment
from ..model.effects import effects_of
from ..model.equations import MixedModel
from ..search.climb import MIN_CURVATURE_SHARE, eigen
from ..search.criterion import Surface
from .kenward_roger import KenwardRoger

if TYPE_CHECKING:
    import pandas as pd

#: least degrees of freedom. With fewer a standard error can be any number: a model with as many columns of clients as
#: clients has none left.
LEAST_DF = 0.01
#: beyond these a t is a normal, and what is left of a variance that nothing depends on is rounding
MOST_DF = 1e12


def coefficients_covariance(method: MixedModel, estimates: State) -> Tensor | None:
    """The covariance of the coefficients that are reported, in the table's units, (r, r).

    Of a gaussian response (X^T V^-1 X)^-1 at the estimates, as lme4 has it; of others at the restricted estimates. None
    where there are no such estimates: the curvature at the maximum says it.
    """
    p = len(method.network.fixed)
    if not method.likelihood.searches_beta:
        if method.settings.kenward_roger:
            turn = method.network.fixed_units.to_users(method.network.fixed, (p,), estimates["cross"])
            return turn @ KenwardRoger.from_estimates(method, estimates).adjusted @ turn.T
        a = Surface(method).beta(estimates["cross"], "ml", method.numbers(estimates))[1]
        turn = method.network.fixed_units.to_users(method.network.fixed, (p,), a)
        return turn @ torch.linalg.inv_ex(a).inverse @ turn.T
    if not has_restricted(method, estimates):
        return None
    turn = _reported(method, estimates)
    if not len(turn):
        return None  # levels have thresholds alone
    covariance: Tensor = turn @ estimates["restricted_covariance"] @ turn.T
    return covariance


def _reported(method: MixedModel, estimates: State) -> Tensor:
    """Derivatives (r, k) of the coefficients that are reported, in the table's units, by the restricted numbers."""
    every = {k: v[None] for k, v in estimates.items()}
    own = [k for k, name in enumerate(effects_of(method, every)[0]) if name in method.network.fixed]
    if not own:
        return estimates["restricted"].new_zeros(0, len(estimates["restricted"]))

    def reported(at: Tensor) -> Tensor:
        return effects_of(method, {**every, **method.parts(at[None])})[1][0, own]

    jacobian: Tensor = torch.autograd.functional.jacobian(reported, estimates["restricted"])
    return jacobian


def has_restricted(method: MixedModel, estimates: State) -> bool:
    """Whether restricted estimates of another response than gaussian were searched."""
    return method.restricted and bool(estimates["restricted_covariance"].any())


def inverse_along_all(curvature: Tensor) -> Tensor:
    """The same, very large along directions in which nothing bends, as if they bent very little."""
    values, vectors, scale = eigen(curvature)
    inverse: Tensor = (vectors / values.clamp_min(MIN_CURVATURE_SHARE)) @ vectors.mT / (scale[:, None] * scale)
    return inverse


def inverse_of(curvature: Tensor) -> Tensor:
    """The inverse of a curvature (k, k), of numbers with units of their own; not a number where it has none."""
    scale = curvature.diagonal().abs().clamp_min(torch.finfo(curvature.dtype).tiny).sqrt()
    unit = curvature / (scale[:, None] * scale)
    definite = bool((torch.linalg.eigvalsh(unit) > 1e-10).all()) if len(unit) else True
    inverse = torch.linalg.inv_ex(unit).inverse / (scale[:, None] * scale)
    return inverse if definite else torch.full_like(inverse, torch.nan)


def satterthwaite(method: MixedModel, estimates: State, contrast: Tensor | None = None) -> Tensor:
    """Degrees of freedom 2 v^2 / Var(v), v the variance of each coefficient (p,) of a gaussian response, or of each of
    contrasts (r, p) of the design's coefficients, (r,).

    Var(v) by the delta method from the covariance of the other numbers' estimates (Kuznetsova et al., JSS 2017), whose
    curvature is of the criterion that they maximise.
    """
    surface, p = Surface(method), len(method.network.fixed)
    turn = method.network.fixed_units.to_users(method.network.fixed, (p,), estimates["cross"])
    turn = turn if contrast is None else contrast
    if not method.k:
        return torch.full((len(turn),), torch.inf, dtype=torch.float64)
    numbers = method.numbers(estimates)

    def variances(step: Tensor) -> Tensor:
        a = surface.beta(estimates["cross"] + step @ estimates["cross_1"], "ml", numbers + step)[1]
        return (turn @ torch.linalg.inv_ex(a).inverse @ turn.T).diagonal()

    nothing = torch.zeros_like(estimates["slope"])
    gradient = torch.autograd.functional.jacobian(variances, nothing)  # (p, k)
    spread = ((gradient @ inverse_along_all(estimates["curvature"])) * gradient).sum(1)
    degrees = 2 * variances(nothing).square() / spread
    return torch.where(degrees > MOST_DF, torch.inf, degrees)


def satterthwaite_f(method: MixedModel, estimates: State, contrast: Tensor) -> tuple[float, float, float]:
    """F, its denominator's degrees of freedom, and p, of contrast (q, p) times the design's coefficients being zero.

    See :func:`f_in_eigenvectors`.
    """
    a = Surface(method).beta(estimates["cross"], "ml", method.numbers(estimates))[1]
    covariance = contrast @ torch.linalg.inv_ex(a).inverse @ contrast.T
    return f_in_eigenvectors(
        contrast @ estimates["beta"], covariance, lambda turn: satterthwaite(method, estimates, turn @ contrast)
    )


def f_in_eigenvectors(
    value: Tensor, covariance: Tensor, df_of: Callable[[Tensor], Tensor]
) -> tuple[float, float, float]:
    """F, its denominator's degrees of freedom, and p, of values (q,) with such a covariance (q, q) being zero.

    In the eigenvectors of the covariance F is a mean of squared t, of which each has its degrees of freedom
    (Fai and Cornelius, 1996; Kuznetsova et al., 2017).

    Args:
        value: what is zero under the hypothesis.
        covariance: of its estimate, of full rank.
        df_of: degrees of freedom (q,) of turned values, by their directions (q, q).
    """
    values, vectors = torch.linalg.eigh(covariance)
    f_value = float(((vectors.T @ value).square() / values).mean())
    degrees, q = df_of(vectors.T), len(value)
    expected = float((degrees / (degrees - 2))[degrees > 2].nan_to_num(1.0).sum())
    if bool((degrees < LEAST_DF).any()):
        return f_value, 0.0, float("nan")
    if q == 1:
        df = float(degrees[0])
    elif bool(degrees.isinf().all()):
        df = float("inf")
    else:
        df = 2 * expected / (expected - q) if expected > q else 2.0
    p = stats.f.sf(f_value, q, df) if np.isfinite(df) else stats.chi2.sf(q * f_value, q)
    return f_value, df, float(p)


def coefficient_tests(table: pd.DataFrame, method: MixedModel, estimates: State, level: float) -> None:
    """Statistics, degrees of freedom, p values and intervals of the coefficients."""
    own = table["effect"].isin(method.network.fixed).to_numpy()
    p = int(own.sum())
    places = [method.network.fixed.index(name) for name in table["effect"][own]]
    df = degrees_of_freedom(method, estimates).cpu().numpy()[places]
    error, estimate = (table[name].to_numpy()[:p] for name in ("standard_error", "estimate"))
    if method.likelihood.searches_beta:
        df = np.where(np.isfinite(df) & (df > 0), df, np.inf)
    df = np.where(df >= LEAST_DF, df, np.nan)
    error = np.where(np.isnan(df), np.nan, error)
    with np.errstate(all="ignore"):
        statistic = estimate / error
        reach = stats.t.ppf((1 + level) / 2, df) * error
        p_value = 2 * stats.t.sf(np.abs(statistic), df)
    for name, column in (
        ("standard_error", error), ("statistic", statistic), ("df", df), ("p", p_value), ("lower", estimate - reach),
        ("upper", estimate + reach),
    ):  # fmt: skip
        values = table[name].to_numpy().copy()
        values[:p] = column
        table[name] = values


def restricted_satterthwaite(method: MixedModel, estimates: State) -> Tensor:
    """Degrees of freedom of each coefficient at the restricted estimates, (p,); see :func:`contrasts_satterthwaite`."""
    every = {k: v[None] for k, v in estimates.items()}
    own = [name for name in effects_of(method, every)[0] if name in method.network.fixed]
    df = torch.full((len(method.network.fixed),), torch.inf, dtype=torch.float64)
    degrees = contrasts_satterthwaite(method, estimates, torch.eye(len(own), dtype=torch.float64))
    df[[method.network.fixed.index(name) for name in own]] = degrees  # levels have thresholds, no intercept
    return df


def contrasts_satterthwaite(method: MixedModel, estimates: State, contrast: Tensor) -> Tensor:
    """Degrees of freedom 2 v^2 / Var(v), v the variance of each contrast at the restricted estimates, (q,).

    Var(v) by the delta method from what the estimates of the other numbers do to the coefficients' information.
    """
    turn = contrast.to(estimates["restricted_covariance"]) @ _reported(method, estimates)
    changes = estimates["restricted_changes"]
    v = (turn @ estimates["restricted_covariance"] @ turn.T).diagonal()
    turn = turn[:, estimates["restricted"].shape[0] - changes.shape[-1] :]
    slopes = (turn @ changes @ turn.T).diagonal(dim1=-2, dim2=-1)
    return (2 * v.square() / slopes.square().sum(0)).cpu()


def degrees_of_freedom(method: MixedModel, estimates: State) -> Tensor:
    """The degrees of freedom of the coefficients' t, (p,): Satterthwaite's; if not gaussian no more than by
    containment.

    Kenward and Roger's where they were asked for. They are infinite where a coefficient is learned from rows.
    """
    if not method.likelihood.searches_beta:
        if not method.settings.kenward_roger:
            return satterthwaite(method, estimates)
        p = len(method.network.fixed)
        turn = method.network.fixed_units.to_users(method.network.fixed, (p,), estimates["cross"])
        return KenwardRoger.from_estimates(method, estimates).degrees_of_freedom(turn)
    contained = by_containment(method, estimates)
    if has_restricted(method, estimates):
        fewer = contained.minimum(restricted_satterthwaite(method, estimates)).clamp_min(1.0)
        return torch.where(contained.isinf(), contained, fewer)
    return contained


def by_containment(method: MixedModel, estimates: State) -> Tensor:
    """Degrees of freedom of coefficients by the groups that they are learned from, (p,); infinite for rows.

    From clients' sums, where restricted estimates were searched; else by the names of columns.
    """
    if has_restricted(method, estimates):
        sums = {name: estimates[name].cpu() for name in ("counts", *containment.sizes(method))}
        return containment.degrees_of_freedom(method, sums.pop("counts"), sums)
    df = torch.full((len(method.network.fixed),), torch.inf, dtype=torch.float64)
    for k, name in enumerate(method.network.fixed):
        if name in method.network.random or name in INTERCEPT:
            df[k] = max(1.0, float(estimates["counts"][0]) - 1)
        for level in method.above:
            if name in level.grouping.names:
                least = max(1.0, level.groups - 1.0)
                df[k] = min(float(df[k]), least) if level.crossed else least
    return df
