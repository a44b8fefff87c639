"""What was estimated, as a statistician reads it: estimates, standard errors, intervals, tests.

Maximum likelihood and REML: coefficients have standard errors from the curvature at the estimates, and t intervals,
with Satterthwaite's degrees of freedom for a gaussian response, and for others those of the clients where a coefficient
differs between them. Standard deviations and correlations have intervals from the density that clients' posteriors are
mixed over, whose boundary is avoided. A posterior has means, standard deviations and quantiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hierfl.inference.state import State

from ..likelihood.quadrature.nodes import by_laplace
from ..model.effects import effects_of
from ..model.equations import EXACT_SHARE, MixedModel
from ..model.names import by_short_name, fixed_values
from ..search.bounds import NOT_IDENTIFIED, Bound, at_bounds
from ..search.profile import INFINITE, UNKNOWN
from ..search.requests import Phase
from ..search.separation import directions
from .coefficients import coefficient_tests, coefficients_covariance, inverse_of
from .intervals import belong
from .notes import notes_of, own_bounds

if TYPE_CHECKING:
    import pandas as pd

    from hierfl.inference.evaluation.fitted import Fitted

#: the share of an effect's change along such a direction from which on it is at infinity, too
MIN_SHARE_ALONG = 1e-3
#: of the intervals
LEVEL = 0.95


def effects_table(fitted: Fitted, level: float = LEVEL) -> tuple[pd.DataFrame, dict[str, float]]:
    """What was estimated, and numbers of the fit.

    The numbers, by name:

    - log_likelihood: of REML its criterion; aic, bic, parameters;
    - groups, rows; inner_groups, inner_2_groups, ...: groups inside clients; outer_groups: groups of clients;
      crossed_groups: groups that cross clients;
    - off_maximum: the length of the next Newton step, in standard errors;
    - laplace: 1 where the effects of several levels inside, of groups that cross clients, or of more effects than have
      nodes, are integrated out by Laplace's approximation;
    - effective_points: the number of independent draws that the explored points are worth;
    - population_draws: how many draws of the population there are;
    - profile_unknown: how many ends of profile intervals were not found;
    - left_out: rows that lacked a value;
    - exact: 1 where the residual's standard deviation is negligible beside the response's.

    Args:
        fitted: by a fit.
        level: of the intervals.

    Returns:
        A row for each coefficient, standard deviation, correlation and number of the family, with effect, estimate,
        standard_error, lower and upper, statistic (t or z), df, p, note. Of a posterior estimate and standard_error are
        its mean and standard deviation. And the numbers.
    """
    import pandas as pd

    method, shared = fitted.method, fitted.shared
    assert isinstance(method, MixedModel)
    bayes, infinite = method.settings.population == "bayes", None
    estimates = by_short_name(shared)
    labels, effects = effects_of(method, {k: v[None] for k, v in estimates.items()})
    values, bounds = effects[0], dict[str, Bound]()
    drawn = _drawn(method, shared)
    table = pd.DataFrame({"effect": labels, "estimate": values.cpu().numpy()})
    for name in ("standard_error", "lower", "upper", "statistic", "df", "p"):
        table[name] = np.nan
    if drawn is not None:
        tail = (1 - level) / 2
        quantiles = torch.quantile(drawn, drawn.new_tensor([tail, 1 - tail]), dim=0)
        table["lower"], table["upper"] = quantiles.cpu().numpy()
    if bayes and drawn is not None:
        table["estimate"], table["standard_error"] = drawn.mean(0).cpu().numpy(), drawn.std(0).cpu().numpy()
    elif not bayes:
        _profiled(table, method, shared, level)
        errors, infinite = standard_errors(method, estimates)
        table["standard_error"] = errors.cpu().numpy()
        bounds = at_bounds(method, estimates) | own_bounds(method, labels, values, estimates, infinite)
        belong(table, method, estimates, bounds, level)
        coefficient_tests(table, method, estimates, level)
    table["note"] = notes_of(method, table, bounds, infinite)
    table.loc[table["note"] == NOT_IDENTIFIED, "standard_error"] = np.nan
    numbers = _numbers(method, estimates, bayes)
    residual = table["estimate"][table["effect"] == "sd(residual)"]
    if not bayes and bool((residual < EXACT_SHARE * method.network.scale).any()):
        numbers["exact"] = 1.0
        table[["standard_error", "lower", "upper", "statistic", "df", "p"]] = np.nan
    if level == method.settings.profile and (unknown := int((estimates["profile"] == UNKNOWN).sum())):
        numbers["profile_unknown"] = float(unknown)
    if lost := fitted.federation.about.get("left_out"):
        numbers["left_out"] = float(sum(lost.values()))
    return table, numbers


def standard_errors(method: MixedModel, estimates: State) -> tuple[Tensor, Tensor]:
    """(m,), from the curvature at the estimates; NaN without any. And which effects are at infinity, (m,).

    The errors of the other effects are conditional on the infinite ones.
    """
    jacobian, inverse, infinite = seen_curvature(method, estimates)
    variance = torch.where(infinite, torch.nan, ((jacobian @ inverse) * jacobian).sum(1))
    own = coefficients_covariance(method, estimates)
    if own is not None:
        variance = torch.cat([own.diagonal(), variance[len(own) :]])
        variance = torch.where(infinite, torch.nan, variance)
    errors: Tensor = torch.where(variance > 0, variance, torch.nan).sqrt()
    return errors, infinite


def seen_curvature(method: MixedModel, estimates: State) -> tuple[Tensor, Tensor, Tensor]:
    """D (m, f) and C (f, f): the effects' covariance is D C D^T, by the curvature at the estimates; and which effects
    are at infinity, (m,). Along directions in which nothing bends there is nothing in D.
    """
    numbers, every = method.numbers(estimates), {k: v[None] for k, v in estimates.items()}

    def effects(at: Tensor) -> Tensor:
        return effects_of(method, {**every, **method.parts(at[None])})[1][0]

    if not method.k:
        nothing = effects(numbers)
        flat = torch.zeros_like(nothing, dtype=torch.bool)
        return nothing.new_full((len(nothing), 1), torch.nan), nothing.new_ones(1, 1), flat
    jacobian = torch.autograd.functional.jacobian(effects, numbers)
    free, flat = directions(method, estimates)
    moved, rest = jacobian @ free, free[:, ~flat]
    infinite = moved[:, flat].norm(dim=1) > MIN_SHARE_ALONG * moved.norm(dim=1)
    return jacobian @ rest, inverse_of(rest.mT @ estimates["curvature"] @ rest), infinite


def p_value(p: float) -> str:
    """The p-value as it is printed."""
    return f"{p:.3f}" if p >= 0.001 else "<0.001" if p == p else ""


def _profiled(table: pd.DataFrame, method: MixedModel, shared: Mapping[str, Tensor], level: float) -> None:
    """Intervals of the profile likelihood, where they were asked for at this level."""
    if "effects.profile" not in shared or level != method.settings.profile:
        return
    rows = (~table["effect"].isin(method.network.fixed)).to_numpy()
    bounds = shared["effects.profile"].cpu().numpy()
    for k, name in enumerate(("lower", "upper")):
        column = table[name].to_numpy().copy()
        ends = np.where(bounds[:, k] == UNKNOWN, np.nan, bounds[:, k])
        column[rows] = np.where(ends == INFINITE, np.inf, ends)
        table[name] = column


def _drawn(method: MixedModel, shared: Mapping[str, Tensor]) -> Tensor | None:
    """The effects (D, m) at the draws of the population; None where there are none."""
    draws = shared["effects.draws"]
    if int(shared["effects.phase"]) != Phase.DONE or not len(draws):
        return None
    parts = method.parts(draws)
    return effects_of(method, {**fixed_values(shared), **parts})[1]


def _numbers(method: MixedModel, estimates: State, bayes: bool) -> dict[str, float]:
    """See :func:`effects_table`."""
    parameters = method.parameters
    clients, rows, *inside = estimates["counts"].tolist()
    numbers = {"parameters": float(parameters), "rows": rows, "groups": clients}
    numbers |= {f"{level.kind}_groups": number for level, number in zip(method.inside, inside, strict=True)}
    crossed = method.likelihood.searches_beta and any(level.crossed for level in method.above)
    if crossed or (by_laplace(method) and method.settings.nodes != 1):
        numbers["laplace"] = 1.0
    for level in method.above:
        name = "smooth_effects" if level.smooth else "crossed_groups" if level.crossed else "outer_groups"
        numbers[name] = numbers.get(name, 0.0) + float(level.groups)
    if not bayes:
        height = float(estimates["height"])
        numbers |= {"log_likelihood": height, "aic": 2 * parameters - 2 * height}
        numbers |= {"bic": parameters * float(np.log(max(rows, 1))) - 2 * height}
        numbers |= {"off_maximum": float(estimates["to_go"])}
    if method.settings.draws and method.k:
        numbers["effective_points"] = float(estimates["worth"])
    if not method.settings.draws:
        numbers["population_draws"] = 0.0
    return numbers
