"""Tests of nested mixed models: F tests, likelihood ratios, and their bootstrap."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from scipy import stats

from hierfl.data.formula.units import INTERCEPT
from hierfl.errors import UserError, unknown
from hierfl.inference.run.result import Run
from hierfl.rng import key

from ..likelihood.quadrature.nodes import by_laplace
from ..method import MixedEffects
from ..model.names import by_short_name
from ..search.requests import Phase
from .coefficients import degrees_of_freedom, satterthwaite_f
from .fitting import fitted_quietly
from .kenward_roger import KenwardRoger
from .same_data import check_same_columns, check_same_data
from .simulating import simulated, simulated_federation
from .summary import effects_table

if TYPE_CHECKING:
    import pandas as pd

#: a fit, and its formula
Model = tuple[Run, str]
#: which test: by default an F test of coefficients of a gaussian response, of others a bootstrap of those that are
#: learned from groups, and else a likelihood ratio beside chi-squared
Test = Literal["auto", "f", "bootstrap", "likelihood-ratio"]
#: simulated tables of a bootstrap
REPLICATES = 199
#: seconds from which a bootstrap is announced
ANNOUNCED_SECONDS = 10.0
log = logging.getLogger("hierfl")


def compared(first: Model, other: Model, test: Test = "auto", replicates: int = REPLICATES) -> pd.DataFrame:
    """See :meth:`hierfl.models.mixed_effects.fitted_model.FittedMixedModel.compare`."""
    import pandas as pd

    if test not in get_args(Test):
        raise unknown("test", test, get_args(Test))
    if any(_method(model).settings.population == "bayes" for model in (first, other)):
        raise UserError("a likelihood-ratio test compares estimates, not posteriors: az.compare compares those")
    check_same_data(first[0], other[0])
    check_same_columns(first[0], other[0])
    small, large = sorted((first, other), key=_parameters)
    if _parameters(small) == _parameters(large):
        raise UserError("the models have as many parameters each: neither is nested in the other")
    fixed = [set(_method(model).network.fixed) for model in (small, large)]
    random = [{name for grouping in _method(m).groupings.values() for name in grouping.labels} for m in (small, large)]
    own = [_own(m) for m in (small, large)]
    if not (fixed[0] <= fixed[1] and random[0] <= random[1] and own[0] <= own[1]):
        raise UserError("the smaller model's effects are not all among the larger one's: they are not nested")
    series = [_method(model).network.correlation for model in (small, large)]
    if series[0] is not None and series[0] != series[1]:
        raise UserError("the smaller model's residuals correlate, and not as the larger one's: they are not nested")
    more_fixed = fixed[1] - fixed[0]
    means_only = (
        bool(more_fixed)
        and not more_fixed & set(INTERCEPT)
        and _parameters(large) - _parameters(small) == len(more_fixed)
    )
    chosen = _chosen(test, large, sorted(more_fixed), means_only)
    restricted = large
    if fixed[0] != fixed[1] or len({_method(model).settings.population for model in (small, large)}) > 1:
        small, large = _refitted(small, "ml"), _refitted(large, "ml")
    small, large, approximated = _approximated_alike(small, large)
    tables = [effects_table(run.fitted)[1] for run, _ in (small, large)]
    ratio = max(0.0, 2 * (tables[1]["log_likelihood"] - tables[0]["log_likelihood"]))
    df: float = _parameters(large) - _parameters(small)
    if chosen == "f":
        ratio, df, p, reference = _f_test(_refitted(restricted, "reml"), sorted(more_fixed))
    elif chosen == "bootstrap":
        p, reference = (
            _bootstrapped(small, large, ratio, replicates),
            f"{replicates} simulated tables of the smaller model",
        )
    else:
        p, reference = _of_chi_squared(ratio, int(df), len(random[1]) - len(random[0]), fixed[0] == fixed[1])
        if _curves(large) > _curves(small):
            reference += ", whose p is too large: a curve is a single group"
    table = pd.DataFrame(
        [
            {"model": formula, **{name: numbers[name] for name in ("parameters", "aic", "bic", "log_likelihood")}}
            for (_, formula), numbers in zip((small, large), tables, strict=True)
        ]
    )
    table["statistic"], table["df"], table["p"] = [np.nan, ratio], [np.nan, df], [np.nan, p]
    table["reference"] = ["", reference + approximated]
    return table


def _approximated_alike(small: Model, large: Model) -> tuple[Model, Model, str]:
    """Both by Laplace's approximation where one is, and what is to know of it.

    Its error in a log likelihood can be more than the difference of two models, and quadrature does not have it.
    """
    approximated = [by_laplace(_method(model)) for model in (small, large)]
    if approximated[0] == approximated[1]:
        return small, large, ""
    small, large = (m if done else _again(m, nodes=1) for m, done in zip((small, large), approximated, strict=True))
    return small, large, "; both by Laplace's approximation"


def _own(model: Model) -> set[tuple[str, str]]:
    """Effects of the formulas of own numbers; an intercept is the number that other models have."""
    own = _method(model).network.own
    return {(level, name) for level, grouping in own.items() for name in grouping.names if name not in INTERCEPT}


def _chosen(test: Test, large: Model, more: list[str], means_only: bool) -> Test:
    """The test that is made.

    Raises:
        UserError: for an F test of models that differ in more than coefficients, or of another response; for a
            bootstrap of rows with weights.
    """
    restricted = not _method(large).likelihood.searches_beta
    if test == "f" and not (means_only and restricted):
        raise UserError("an F test is of models of a gaussian response with the same random effects")
    if test == "bootstrap" and _method(large).settings.one_round:
        raise UserError("test='bootstrap' fits again and again: of one_round it is test='likelihood-ratio'")
    if test == "auto" and means_only and restricted:
        return "f"
    if test == "auto":
        test = "bootstrap" if means_only and _from_groups(large, more) else "likelihood-ratio"
    if test == "bootstrap" and "weight" in _method(large).network.extras:
        raise UserError(
            "a bootstrap would draw one response for all the rows that a row with a weight stands for: "
            f"test='likelihood-ratio', or fit.test({' = '.join([*more, '0'])!r}) of the larger model"
        )
    return test


def _from_groups(model: Model, names: list[str]) -> bool:
    """Whether some of the coefficients are learned from clients or groups, not from rows."""
    run, method = _refitted(model, "auto")[0], _method(model)
    df = degrees_of_freedom(method_of(run), by_short_name(run.shared))
    return any(bool(df[method.network.fixed.index(name)].isfinite()) for name in names)


def _f_test(model: Model, names: list[str]) -> tuple[float, float, float, str]:
    """F, numerator's degrees of freedom, p, and what it is, of coefficients of these names being zero."""
    run, method = model[0], _method(model)
    estimates, fixed = by_short_name(run.shared), method.network.fixed
    turn = method.network.fixed_units.to_users(fixed, (len(fixed),), estimates["beta"])
    contrast = turn[[fixed.index(name) for name in names]]
    if method.settings.kenward_roger:
        f_value, df, p = KenwardRoger.from_estimates(method, estimates).f_test(contrast @ estimates["beta"], contrast)
        return f_value, float(len(names)), p, f"F({len(names)}, {df:.1f}), Kenward and Roger"
    f_value, df, p = satterthwaite_f(method, estimates, contrast)
    return f_value, float(len(names)), p, f"F({len(names)}, {df:.1f}), Satterthwaite"


def _of_chi_squared(ratio: float, df: int, more: int, same_means: bool) -> tuple[float, str]:
    """p of a likelihood ratio, and what its distribution is taken for.

    Args:
        ratio: the statistic.
        df: parameters more.
        more: random effects more.
        same_means: whether the fixed effects are the same.
    """
    p, reference = float(stats.chi2.sf(ratio, df)), f"chi-squared({df})"
    if more == 1 and same_means:
        below = float(stats.chi2.sf(ratio, df - 1)) if df > 1 else float(ratio <= 0)
        return 0.5 * p + 0.5 * below, f"half chi-squared({df - 1}), half chi-squared({df})"
    return p, reference + (", whose p is too large: variances are on their boundary" if more else "")


def _bootstrapped(small: Model, large: Model, ratio: float, replicates: int) -> float:
    """p of a likelihood ratio by a parametric bootstrap: clients simulate from the smaller model, and both are fitted
    to the sums of what they simulated (Davison and Hinkley, 1997, 4.2.5).

    Raises:
        UserError: where fewer than half of the simulated tables could be fitted.
    """
    above = fits = 0
    begun = time.monotonic()
    for number in range(replicates):
        if number == 1 and (seconds := (time.monotonic() - begun) * replicates) > ANNOUNCED_SECONDS:
            log.warning(
                f"the test fits both models to {replicates} simulated tables, for about {seconds:.0f} s: "
                "test='likelihood-ratio' needs none, and replicates= says how many"
            )
        y = simulated(small[0], number, small[0].options.seed)
        heights = []
        for model in (small, large):
            again = fitted_quietly(_quick(model), simulated_federation(model[0], y, key(model[0].options.seed, number)))
            heights.append(float(again.shared["effects.height"]))
            if int(again.shared["effects.phase"]) != Phase.DONE:
                heights[-1] = np.nan
        if np.isfinite(heights).all():
            fits += 1
            above += 2 * (heights[1] - heights[0]) >= ratio
    if 2 * fits < replicates:
        raise UserError(
            f"{replicates - fits} of {replicates} simulated tables could not be fitted: test='likelihood-ratio'"
        )
    return (above + 1) / (fits + 1)


def _quick(model: Model) -> MixedEffects:
    """The same model by maximum likelihood, begun where it ended, of which nothing but the height is needed."""
    settings = {**vars(_method(model).settings), "population": "ml", "draws": 0, "profile": 0.0, "tol": 1e-4}
    return MixedEffects(_method(model).network, **settings)


def method_of(run: Run) -> MixedEffects:
    """What was fitted."""
    method = run.fitted.method
    assert isinstance(method, MixedEffects)
    return method


def _curves(model: Model) -> int:
    """Smooth terms."""
    return sum(level.smooth for level in _method(model).above)


def _method(model: Model) -> MixedEffects:
    return method_of(model[0])


def _parameters(model: Model) -> int:
    """Numbers that are estimated."""
    return _method(model).parameters


def _refitted(model: Model, population: str) -> Model:
    """The same model with another population; itself where it is that."""
    method = _method(model)
    if method.settings.population == population:
        return model
    return _again(model, population=population, kenward_roger=method.settings.kenward_roger and population == "reml")


def _again(model: Model, **others: Any) -> Model:
    """The same model with other settings."""
    method = _method(model)
    again = MixedEffects(method.network, **{**vars(method.settings), "draws": 0, "profile": 0.0, **others})
    return fitted_quietly(again, model[0].fitted.federation), model[1]  # warnings on these clients were given before
