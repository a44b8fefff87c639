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
from scipy import stats
from torch import Tensor

from hierfl.data.formula.units import INTERCEPT
from hierfl.inference.state import State

from .effects import effects_of
from .model import MixedModel
from .posterior import short
from .profile import UNKNOWN
from .questions import Likelihoods, Phase
from .separation import directions
from .surface import Surface

if TYPE_CHECKING:
    import pandas as pd

    from hierfl.inference.evaluation.fitted import Fitted

#: a standard deviation is at its bound where it is below this share of the response's, a correlation beyond this
SD_BOUND, CORRELATION_BOUND = 1e-3, 0.999
#: the share of an effect's change along such a direction from which on it is at infinity, too
ALONG = 1e-3
#: of the intervals
LEVEL = 0.95


def effects_table(fitted: Fitted, level: float = LEVEL) -> tuple[pd.DataFrame, dict[str, float]]:
    """What was estimated.

    Args:
        fitted: by a fit.
        level: of the intervals.

    Returns:
        A row for each coefficient, standard deviation, correlation and number of the family: effect, estimate,
        standard_error, lower and upper, statistic (t or z), df, p, note. Of a posterior estimate and
        standard_error are its mean and standard deviation. And numbers: log_likelihood (of REML its criterion), aic,
        bic, parameters, groups, rows, off_maximum (the length in standard errors of the Newton step still to go),
        inner_groups and outer_groups (those inside clients and of clients),
        effective_points (what the explored points are worth), population_draws (0 where there are none), left_out
        (rows that lacked a value).
    """
    import pandas as pd

    method, shared = fitted.method, fitted.shared
    assert isinstance(method, MixedModel)
    bayes, infinite = method.settings.population == "bayes", None
    estimates = short(shared)
    labels, here = effects_of(method, {k: v[None] for k, v in estimates.items()})
    values = here[0]
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
        _coefficient_tests(table, method, estimates, level)
    table["note"] = _notes(method, labels, values, table["standard_error"].to_numpy(), estimates, infinite)
    numbers = _numbers(method, estimates, bayes)
    if lost := fitted.federation.about.get("left_out"):
        numbers["left_out"] = float(sum(lost.values()))
    return table, numbers


def standard_errors(method: MixedModel, estimates: State) -> tuple[Tensor, Tensor]:
    """(m,): from the curvature at the estimates; not a number where there is none. And which effects are at infinity,
    (m,): others have the errors that they have with those there.
    """
    numbers, every = method.numbers(estimates), {k: v[None] for k, v in estimates.items()}

    def effects(at: Tensor) -> Tensor:
        return effects_of(method, {**every, **method.parts(at[None])})[1][0]

    if method.k:
        jacobian = torch.autograd.functional.jacobian(effects, numbers)
        along, flat = directions(method, estimates)
        moved, rest = jacobian @ along, along[:, ~flat]
        infinite = moved[:, flat].norm(dim=1) > ALONG * moved.norm(dim=1)
        seen = jacobian @ rest
        variance = ((seen @ inverse_of(rest.mT @ estimates["curvature"] @ rest)) * seen).sum(1)
        variance = torch.where(infinite, torch.nan, variance)
    else:
        variance = torch.full_like(effects(numbers), torch.nan)
        infinite = torch.zeros_like(variance, dtype=torch.bool)
    if method.exact:  # coefficients given the other numbers, as lme4 has them
        p = len(method.network.fixed)
        turn = method.network.fixed_units.to_users(method.network.fixed, (p,), variance)
        variance = variance.clone()
        variance[:p] = (turn @ coefficients_covariance(method, estimates) @ turn.T).diagonal()
    found: Tensor = torch.where(variance > 0, variance, torch.nan).sqrt()
    return found, infinite


def coefficients_covariance(method: MixedModel, estimates: State) -> Tensor:
    """Of a gaussian response: (X^T V^-1 X)^-1 at the estimates, (p, p)."""
    numbers = method.numbers(estimates)
    return torch.linalg.inv_ex(Surface(method).beta(estimates["cross"], "ml", numbers)[1]).inverse


def inverse_of(curvature: Tensor) -> Tensor:
    """The inverse of a curvature (k, k), of numbers with units of their own; not a number where it has none."""
    scale = curvature.diagonal().abs().clamp_min(torch.finfo(curvature.dtype).tiny).sqrt()
    unit = curvature / (scale[:, None] * scale)
    definite = bool((torch.linalg.eigvalsh(unit) > 1e-10).all()) if len(unit) else True
    inverse = torch.linalg.inv_ex(unit).inverse / (scale[:, None] * scale)
    return inverse if definite else torch.full_like(inverse, torch.nan)


def satterthwaite(method: MixedModel, estimates: State) -> Tensor:
    """Degrees of freedom (p,) of the coefficients of a gaussian response: 2 v^2 / Var(v), v each one's variance.

    Var(v) by the delta method from the covariance of the other numbers' estimates (Kuznetsova et al., JSS 2017), whose
    curvature is of the criterion that they maximise.
    """
    surface, p = Surface(method), len(method.network.fixed)
    if not method.k:
        return torch.full((p,), torch.inf, dtype=torch.float64)
    turn = method.network.fixed_units.to_users(method.network.fixed, (p,), estimates["cross"])
    numbers = method.numbers(estimates)

    def variances(step: Tensor) -> Tensor:
        a = surface.beta(estimates["cross"] + step @ estimates["cross_1"], "ml", numbers + step)[1]
        return (turn @ torch.linalg.inv_ex(a).inverse @ turn.T).diagonal()

    nothing = torch.zeros_like(estimates["slope"])
    gradient = torch.autograd.functional.jacobian(variances, nothing)  # (p, k)
    spread = ((gradient @ inverse_of(estimates["curvature"])) * gradient).sum(1)
    return 2 * variances(nothing).square() / spread


def _coefficient_tests(table: pd.DataFrame, method: MixedModel, estimates: State, level: float) -> None:
    """Statistics, degrees of freedom, p values and intervals of the coefficients."""
    own = table["effect"].isin(method.network.fixed).to_numpy()
    p = int(own.sum())
    if method.exact:
        df = satterthwaite(method, estimates).cpu().numpy()
    else:
        df = np.full(p, np.inf)
        for k, name in enumerate(table["effect"][own]):
            if name in method.network.random or name in INTERCEPT:
                df[k] = max(1.0, float(estimates["counts"][0]) - 1)
            if method.network.outer and name in method.network.outer.names:
                df[k] = max(1.0, method.regions - 1.0)
    error, estimate = (table[name].to_numpy()[:p] for name in ("standard_error", "estimate"))
    df = np.where(np.isfinite(df) & (df > 0), df, np.inf)
    with np.errstate(all="ignore"):
        statistic = estimate / error
        reach = stats.t.ppf((1 + level) / 2, df) * error
        p_value = 2 * stats.t.sf(np.abs(statistic), df)
    for name, column in (
        ("statistic", statistic), ("df", df), ("p", p_value), ("lower", estimate - reach), ("upper", estimate + reach)
    ):  # fmt: skip
        values = table[name].to_numpy().copy()
        values[:p] = column
        table[name] = values


def p_value(p: float) -> str:
    """As it is printed."""
    return f"{p:.3f}" if p >= 0.001 else "<0.001" if p == p else ""


def _profiled(table: pd.DataFrame, method: MixedModel, shared: Mapping[str, Tensor], level: float) -> None:
    """Intervals of the profile likelihood, where they were asked for at this level."""
    if "effects.profile" not in shared or level != method.settings.profile:
        return
    rows = (~table["effect"].isin(method.network.fixed)).to_numpy()
    bounds = shared["effects.profile"].cpu().numpy()
    for k, name in enumerate(("lower", "upper")):
        found = table[name].to_numpy().copy()
        found[rows] = np.where(bounds[:, k] == UNKNOWN, np.nan, bounds[:, k])
        table[name] = found


def _drawn(method: MixedModel, shared: Mapping[str, Tensor]) -> Tensor | None:
    """The effects (D, m) at the draws of the population; None where there are none."""
    draws = shared["effects.draws"]
    if int(shared["effects.phase"]) != Phase.DONE or not len(draws):
        return None
    parts = method.parts(draws)
    return effects_of(method, {**Likelihoods.held(shared), **parts})[1]


def _notes(
    method: MixedModel, labels: list[str], values: Tensor, errors: np.ndarray, estimates: State, infinite: Tensor | None
) -> list[str]:
    """What is to know of an effect; empty where nothing is, as of a posterior (``infinite`` None)."""
    held, family = method.settings.prior == "fixed", method.response_family
    own = family.own(method.network.fixed, estimates["beta"][None], {k: v[None] for k, v in estimates.items()})
    notes = []
    far = [False] * len(labels) if infinite is None else infinite.tolist()
    for name, value, error, without_end in zip(labels, values.tolist(), errors.tolist(), far, strict=True):
        of_random = name.startswith(("sd(", "corr(")) and name != "sd(residual)"
        if held and of_random:
            notes.append("held")
        elif infinite is None:
            notes.append("")
        elif name in own and (note := family.at_bound(name, _end(value) if without_end else value)):
            notes.append(note)
        elif without_end:
            notes.append("no finite estimate: separated")
        elif name.startswith("sd(") and of_random and value < SD_BOUND * method.network.scale:
            notes.append("at its lower bound")
        elif name.startswith("corr(") and abs(value) > CORRELATION_BOUND:
            notes.append("at its bound")
        else:
            notes.append("" if np.isfinite(error) else "not identified")
    return notes


def _end(value: float) -> float:
    """Where a positive number without an end is going."""
    return float("inf") if value > 1 else 0.0


def _numbers(method: MixedModel, estimates: State, bayes: bool) -> dict[str, float]:
    """See :func:`effects_table`."""
    parameters = method.k + (len(method.network.fixed) if method.exact else 0)
    clients, rows, *inside = estimates["counts"].tolist()
    found = {"parameters": float(parameters), "rows": rows, "groups": clients}
    if inside:
        found["inner_groups"] = inside[0]
    if method.regions:
        found["outer_groups"] = float(method.regions)
    if not bayes:
        height = float(estimates["height"])
        found |= {"log_likelihood": height, "aic": 2 * parameters - 2 * height}
        found |= {"bic": parameters * float(np.log(max(rows, 1))) - 2 * height}
        found |= {"off_maximum": float(estimates["to_go"])}
    if method.settings.draws and method.k:
        found["effective_points"] = float(estimates["worth"])
    if not method.settings.draws:
        found["population_draws"] = 0.0
    return found
