"""Fitted values and residuals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from hierfl.errors import UserError, unknown
from hierfl.inference.checks import check_whole
from hierfl.inference.run.result import Run
from hierfl.inference.state import State
from hierfl.rng import key

from ..model.equations import MixedModel
from ..model.names import by_short_name
from ..report.estimates_only import at_nodes
from ..report.own_spreads import beside_nodes
from .quantiles import quantiles
from .rows import RowLevel, Rows, effects_at_estimates, predictor, rows_of, single_client

if TYPE_CHECKING:
    import pandas as pd

#: the response less its mean; that over its standard deviation; a normal's quantile
Residual = Literal["response", "pearson", "quantile"]


def fitted_values(run: Run, df: pd.DataFrame | None, level: RowLevel) -> pd.Series:
    """See :meth:`.of_rows.OfRows.fitted`."""
    import pandas as pd

    rows = rows_of(run, df, level, response=False)
    method, estimates = _method_and_estimates(run)
    fn = _distribution(method, rows, estimates, _own(run, level))
    return pd.Series(method.response_family.mean_of(fn).expand(len(rows.index)).numpy(), rows.index, name="fitted")


def residual_values(
    run: Run, df: pd.DataFrame | None, kind: Residual, level: RowLevel | None, seed: int
) -> pd.Series:  # fmt: skip
    """See :meth:`.of_rows.OfRows.residuals`."""
    import pandas as pd

    check_whole("seed", seed, 0)
    level = level or ("new" if kind == "quantile" else "client")
    rows = rows_of(run, df, level, response=True)
    assert rows.y is not None
    method, estimates = _method_and_estimates(run)
    values = (
        _normal_quantiles(run, method, rows, estimates, level, seed)
        if kind == "quantile"
        else _scaled(method, rows, _distribution(method, rows, estimates, _own(run, level)), kind)
    )
    return pd.Series(values.numpy(), rows.index, name="residual")


def _scaled(method: MixedModel, rows: Rows, fn: Any, kind: Residual) -> Tensor:
    """Residuals in the table's numbers; not a number where a time was not watched to its event."""
    assert rows.y is not None
    family, event = method.response_family, rows.columns(method).event
    away = family.in_table_numbers(rows.y) - family.mean_of(fn)
    if event is not None:
        away = torch.where(event[0] > 0, away, torch.nan)
    if kind == "pearson":
        try:
            variance = fn.reported.variance if family.ordered else fn.variance
        except NotImplementedError:
            raise UserError(f"a {family.name} response has no Pearson residuals here: kind='quantile'") from None
        away = away / variance.sqrt()
    return away


def _normal_quantiles(run: Run, method: MixedModel, rows: Rows, estimates: State, level: RowLevel, seed: int) -> Tensor:
    """Phi^-1 of each response's quantile, (N,)."""
    assert rows.y is not None
    columns = rows.columns(method)
    population = {k: v[None] for k, v in estimates.items()}
    eta = method.predictor(columns, estimates["beta"])
    own = _own(run, level) or {}
    owner = rows.owner if level == "client" else None
    at_rows = at_nodes(method, eta, columns, population, own, owner, level)
    nodes, weights, spread = beside_nodes(method, at_rows, population, own, owner, level)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key(seed, "quantile residuals") % 2**63)
        noise = torch.rand(len(rows.y), dtype=torch.float64)
        fn = method.response(nodes, {**estimates, **spread}, single_client(columns))
        event = None if columns.event is None else columns.event[0]
        u = quantiles(method.response_family, fn, rows.y, weights, event, noise)
    edge = torch.finfo(torch.float64).eps
    return torch.special.ndtri(u.clamp(edge, 1 - edge))


def _method_and_estimates(run: Run) -> tuple[MixedModel, State]:
    """The model and its estimates by short names."""
    method = run.fitted.method
    assert isinstance(method, MixedModel)
    return method, {k: v.cpu() for k, v in by_short_name(run.shared).items()}


def _own(run: Run, level: RowLevel) -> State | None:
    """Effects of clients where rows are by them.

    Raises:
        UserError: for an unknown level.
    """
    if level not in get_args(RowLevel):
        raise unknown("level", level, get_args(RowLevel))
    return effects_at_estimates(run.fitted) if level == "client" else None


def _distribution(method: MixedModel, rows: Rows, estimates: State, own: State | None) -> Any:
    """p(y | eta) of rows at the estimates, (N,)."""
    eta = predictor(method, rows, estimates, own)
    spread = {} if own is None or rows.owner is None else method.spread(own["b_mean"][rows.owner])
    return method.response(eta, {**estimates, **spread}, single_client(rows.columns(method)))
