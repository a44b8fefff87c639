"""Alternatives of one model on the same rows: how well each predicts rows that it has not seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hierfl.data.column_design import ColumnDesign
from hierfl.data.column_federation import column_federation
from hierfl.data.column_table import levels_of
from hierfl.elpd import elpd_value
from hierfl.errors import UserError
from hierfl.rng import key

from .evaluating import Clients
from .fitted_model import FittedModel
from .joint_draws import JointDraws
from .names import BOUND
from .sites import Model, read_model
from .values import NO_ROW, Draws, at_draws

if TYPE_CHECKING:
    import pandas as pd

#: a row whose k is larger has a leave-one-out density that is not to be relied on
MAX_RELIABLE_K = 0.7


@dataclass(frozen=True)
class Scored:
    """What is known of one alternative.

    Attributes:
        name: of the model.
        densities: log predictive density of each row, by leave-one-out or of rows that were held out, (N,).
        large_k: number of rows whose leave-one-out estimate is unreliable; 0 where rows were held out.
        bound: lower bound on the log marginal likelihood of the rows that were fitted.
        globals: how many numbers all clients share.
        notes: what a reader has to know of the fit, a line each.
    """

    name: str
    densities: list[float]
    large_k: int
    bound: float
    globals: int
    notes: list[str]


@dataclass(frozen=True)
class Difference:
    """An alternative beside the best one.

    Attributes:
        name: of the model.
        elpd: summed log predictive density.
        elpd_se: its standard error, over rows.
        behind: the best alternative's elpd less this one's; 0 of the best one.
        behind_se: its standard error, of differences that are paired by row.
        bound, large_k, globals: see :class:`Scored`.
    """

    name: str
    elpd: float
    elpd_se: float
    behind: float
    behind_se: float
    bound: float
    large_k: int
    globals: int


def split_rows(df: pd.DataFrame, group: str, share: float, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows to fit, and a share of each client's rows that are held out; a client keeps one row at least.

    Levels of text columns are those of the whole table in both.
    """
    import pandas as pd

    df = df.copy()
    for name in df.columns:
        levels = levels_of(df[name]) if name != group else None
        if levels is not None:
            df[name] = pd.Categorical(df[name].astype(str), categories=list(levels))
    held_out = np.zeros(len(df), bool)
    for name, rows in df.groupby(df[group].astype(str)).indices.items():
        count = min(len(rows) - 1, round(share * len(rows)))
        order = np.random.default_rng(key(seed, "held out", name)).permutation(len(rows))
        held_out[rows[order[:count]]] = True
    if not held_out.any():
        raise UserError(f"no client has enough rows to hold out {share:.0%} of them")
    return df[~held_out].reset_index(drop=True), df[held_out].reset_index(drop=True)


def refuse_rows(name: str, model: Model, design: ColumnDesign, rows: Tensor, *, held_out: bool) -> None:
    """Refuses, before it is fitted, a model whose rows cannot be compared with other models'.

    Args:
        name, model, design: the model.
        rows: of one client, (columns, n).
        held_out: whether rows are held out, not left out one at a time.

    Raises:
        UserError: which names the model.
    """
    design = replace(design, rows=rows.shape[-1])
    sites = read_model(model, design)
    x, v = sites.start, sites.client_start
    clients = Clients(model, sites, design, rows[None], None, torch.ones_like(v)[None])
    densities = at_draws(clients, Draws(x[None], v[None, None]), lambda seen_site: seen_site.log_prob)
    by_row = [site for site, value in densities.items() if value.dim() > 2]
    if not by_row:
        raise UserError(f"{name}: {NO_ROW}")
    if held_out and len(by_row) < len(densities):
        raise UserError(_once(name))
    if len(by_row) > 1 and not held_out:
        raise UserError(
            f"{name}: each row has {len(by_row)} sites, {', '.join(by_row)}, and leave-one-out is of one: hold rows "
            "out by test_fraction=0.2 (--test-fraction 0.2)"
        )


def _once(name: str) -> str:
    return f"{name} observes something once for a client: its rows have no densities alone"


def scored(name: str, fitted: FittedModel, held_out: pd.DataFrame | None, group: str) -> Scored:
    """How well a fit predicts rows.

    Args:
        name: of the model.
        fitted: its fit.
        held_out: rows that were not fitted; None for leave-one-out.
        group: the column that names the clients.

    Raises:
        UserError: for a model whose rows have no log densities of their own.
    """
    if held_out is None:
        try:
            elpd = fitted.loo()
        except UserError as error:
            raise UserError(f"{name}: {error}") from error
        densities = np.asarray(elpd_value(elpd, "elpd_i"), float)
        large = int((np.asarray(elpd_value(elpd, "pareto_k")) > MAX_RELIABLE_K).sum())
    else:
        densities, large = _of_held_out(fitted, held_out, group), 0
    return Scored(
        name, densities.ravel().tolist(), large, float(fitted.run.shared[BOUND]), fitted.method.p,
        fitted.joint.notes(fitted.run.rounds),
    )  # fmt: skip


def _of_held_out(fitted: FittedModel, df: pd.DataFrame, group: str) -> np.ndarray:
    columns = list(fitted.method.network.columns)
    federation, _ = column_federation(df, group, columns, "keep")
    names = [str(name) for name in federation.ids]
    at = torch.tensor([fitted.client_names.index(name) for name in names])
    joint = fitted.joint.fitted
    personal = {name: value[at] for name, value in joint.personal.items()}
    doubles = federation.to(dtype=torch.float64)
    by_row, by_client = JointDraws(replace(joint, personal=personal, federation=doubles)).log_densities
    if by_client or not by_row:
        raise UserError(_once(fitted.method.name))
    total = torch.from_numpy(sum(by_row.values(), np.zeros(())))
    return np.asarray((total.logsumexp(0) - math.log(len(total))).numpy())


def differences(models: Sequence[Scored]) -> list[Difference]:
    """The alternatives, best first.

    Raises:
        UserError: where they do not have the same rows.
    """
    sizes = {model.name: len(model.densities) for model in models}
    if len(set(sizes.values())) > 1:
        raise UserError(f"the models have densities of different numbers of rows: {sizes}")
    densities = {model.name: np.array(model.densities) for model in models}
    best = max(densities, key=lambda name: densities[name].sum())
    rows = []
    for model in models:
        own = densities[model.name]
        gap = densities[best] - own
        rows.append(Difference(
            model.name, float(own.sum()), _error(own), float(gap.sum()), _error(gap), model.bound, model.large_k,
            model.globals,
        ))  # fmt: skip
    return sorted(rows, key=lambda row: row.behind)


def _error(values: np.ndarray) -> float:
    """Standard error of a sum over rows."""
    return float(math.sqrt(len(values)) * values.std(ddof=1)) if len(values) > 1 else math.nan
