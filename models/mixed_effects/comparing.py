"""Likelihood-ratio tests of nested mixed models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from hierfl.errors import UserError
from hierfl.inference.run.result import Run

from .fitting import fitted
from .method import MixedEffects
from .same_data import check_same_data
from .summary import effects_table

if TYPE_CHECKING:
    import pandas as pd

#: a fit, and its formula
Model = tuple[Run, str]


def compared(one: Model, other: Model) -> pd.DataFrame:
    """See :meth:`hierfl.models.mixed_effects.mixed_model.FittedMixedModel.compare`."""
    import pandas as pd

    if any(_method(model).settings.population == "bayes" for model in (one, other)):
        raise UserError("a likelihood-ratio test compares estimates, not posteriors: az.compare compares those")
    check_same_data(one[0], other[0])
    small, large = sorted((one, other), key=_parameters)
    if _parameters(small) == _parameters(large):
        raise UserError("the models have as many parameters each: neither is nested in the other")
    fixed = [set(_method(model).network.fixed) for model in (small, large)]
    random = [{name for of in _method(m).groupings.values() for name in of.labels} for m in (small, large)]
    if not (fixed[0] <= fixed[1] and random[0] <= random[1]):
        raise UserError("the smaller model's effects are not all among the larger one's: they are not nested")
    if fixed[0] != fixed[1] or len({_method(model).settings.population for model in (small, large)}) > 1:
        small, large = _by_ml(small), _by_ml(large)
    tables = [effects_table(run.fitted)[1] for run, _ in (small, large)]
    statistic = max(0.0, 2 * (tables[1]["log_likelihood"] - tables[0]["log_likelihood"]))
    df, more = _parameters(large) - _parameters(small), len(random[1]) - len(random[0])
    p, reference = float(stats.chi2.sf(statistic, df)), f"chi-squared({df})"
    if more == 1 and fixed[0] == fixed[1]:
        below = float(stats.chi2.sf(statistic, df - 1)) if df > 1 else float(statistic <= 0)
        p, reference = 0.5 * p + 0.5 * below, f"half chi-squared({df - 1}), half chi-squared({df})"
    elif more:
        reference += ", whose p is too large: variances are on their boundary"
    table = pd.DataFrame(
        [
            {"model": formula, **{name: numbers[name] for name in ("parameters", "aic", "bic", "log_likelihood")}}
            for (_, formula), numbers in zip((small, large), tables, strict=True)
        ]
    )
    table["statistic"], table["df"], table["p"] = [np.nan, statistic], [np.nan, df], [np.nan, p]
    table["reference"] = ["", reference]
    return table


def _method(model: Model) -> MixedEffects:
    method = model[0].fitted.method
    assert isinstance(method, MixedEffects)
    return method


def _parameters(model: Model) -> int:
    """Numbers that are estimated."""
    method = _method(model)
    return method.k + (len(method.network.fixed) if method.exact else 0)


def _by_ml(model: Model) -> Model:
    """The same model by maximum likelihood."""
    method = _method(model)
    if method.settings.population == "ml":
        return model
    again = MixedEffects(method.network, **{**vars(method.settings), "population": "ml", "draws": 0})
    return fitted(again, model[0].fitted.federation), model[1]
