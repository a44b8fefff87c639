"""Rows that residuals and simulations are of: those that were fitted, or those of another table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from hierfl.data.client_names import client_names
from hierfl.data.column_names import no_column
from hierfl.data.formula import gate
from hierfl.data.formula.column_types import typed
from hierfl.data.formula.design import Columns
from hierfl.data.formula.groups import group_names
from hierfl.data.formula.missing import without_missing
from hierfl.data.formula.parsed import OUTER
from hierfl.data.formula.reader import Reader
from hierfl.data.formula.row_numbers import RowColumns
from hierfl.errors import UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.evaluation.fitted import Fitted
from hierfl.inference.run.result import Run
from hierfl.inference.state import State

from ..model.arithmetic import linear, of_smooth
from ..model.equations import MixedModel
from ..model.names import by_short_name
from ..report.client_of_rows import client_of_rows
from ..report.same_data import NO_ROWS
from ..report.shrinkage import passes

if TYPE_CHECKING:
    import pandas as pd

#: of a federation without rows, its clients' effects
KEPT = "effects"
#: each row by its own client's effects; where effects are zero; of a client that is not known
RowLevel = Literal["client", "population", "new"]


@dataclass(frozen=True)
class Rows:
    """N rows.

    Attributes:
        inputs: as the design has them, (N, width).
        index: of a table of their answers.
        owner: the client of each row, (N,); None where it does not matter.
        y: their response, (N,); None where it is not asked for.
    """

    inputs: Tensor
    index: pd.Index
    owner: Tensor | None
    y: Tensor | None

    def columns(self, method: MixedModel) -> Columns:
        """The rows' columns as those of one client, (1, N, ...)."""
        return method.network.split(self.inputs[None])


def fitted_rows(run: Run) -> Rows:
    """Those of the fit, in the table's order.

    Raises:
        UserError: where the fit has no rows, as at the server of a study.
    """
    federation = run.fitted.federation
    if NO_ROWS in federation.about:
        raise UserError("this fit has no rows: give a table, df=, or load it with that which was fitted")
    if "index" not in federation.about:
        raise UserError("the rows of this fit are not in one table: give one, as in residuals(df)")
    owner = torch.zeros(len(federation.y), dtype=torch.long)
    for j, rows in enumerate(federation.train):
        owner[rows.cpu()] = j
    inputs, y = federation.x.cpu().to(torch.float64), federation.y.cpu().to(torch.float64)
    return Rows(inputs, federation.about["index"], owner, y)


def rows_of(
    run: Run, df: pd.DataFrame | None, level: RowLevel, *, response: bool, weights: bool = False, series: bool = False
) -> Rows:
    """The rows of a table, or those of the fit.

    Args:
        run: the fit.
        df: a table with the predictors; None for that of the fit.
        level: "client" needs the clients' column.
        response: whether theirs is needed; rows that lack it are left out, as they were in the fit.
        weights: whether rows of a table with a response count as often as the fit's column of weights says.
        series: whether residuals of a table with a response correlate, as they do in the fit.

    Raises:
        UserError: for a table that does not fit.
    """
    if df is None:
        return fitted_rows(run)
    reader = run.fitted.federation.about["reader"]
    assert isinstance(reader, Reader)
    if not len(df):
        raise UserError("the table has no rows")
    if response and run.fitted.federation.about.get("left_out"):
        terms = gate.parse(reader.formula)
        df, _ = without_missing(df, terms, reader.places.levels.client, reader.more.columns)
    df = reader.prepared(df)
    inputs = torch.as_tensor(reader(df), dtype=torch.float64)
    y = None
    if response:
        for name in sorted(gate.parse(reader.formula).response or ()):
            if name not in df.columns:
                raise no_column(name, df.columns, "the table lacks column")
        df = _in_order(reader, df, run.fitted.method.network.labels)  # type: ignore[attr-defined]
        observed = reader.response(df, run.fitted.method.network.family)  # type: ignore[attr-defined]
        y = torch.as_tensor(_numbered(run, observed.y, observed.labels), dtype=torch.float64)
        _put_numbers(reader, df, inputs, "event")
        if weights:
            _put_numbers(reader, df, inputs, "weights")
        if series:
            _put_series(run, df, inputs)
    owner = client_of_rows(run, df) if level == "client" else None
    return Rows(inputs, df.index, owner, y)


def _in_order(reader: Reader, df: pd.DataFrame, labels: tuple[object, ...]) -> pd.DataFrame:
    """A table whose response's levels are in the fit's order, where they are text.

    Raises:
        UserError: for a level that was not in the fit.
    """
    import pandas as pd

    if not labels or not all(isinstance(label, str) for label in labels):
        return df
    (name,) = gate.parse(reader.formula).response or ("",)
    if name not in df.columns:
        raise no_column(name, df.columns, "the table lacks column")
    values = df[name].astype(str)
    if strange := sorted(set(values) - set(labels)):
        raise UserError(f"the response has the level {strange[0]!r}, which was in no row of the fit")
    return df.assign(**{name: pd.Categorical(values, labels, ordered=True)})


def _numbered(run: Run, y: np.ndarray, labels: tuple[object, ...]) -> np.ndarray:
    """A response with the levels' numbers of the fit.

    Raises:
        UserError: for a level that was not in the fit.
    """
    names = list(run.fitted.method.network.labels)  # type: ignore[attr-defined]
    if not labels or list(labels) == names:
        return y
    if strange := [label for label in labels if label not in names]:
        raise UserError(f"the response has the level {str(strange[0])!r}, which was in no row of the fit")
    return np.array([names.index(label) + 1.0 for label in labels])[y.astype(int) - 1]


def _put_numbers(reader: Reader, df: pd.DataFrame, inputs: Tensor, role: Literal["event", "weights"]) -> None:
    """What ended the times of rows, or how often each counts, instead of ones.

    Raises:
        UserError: for a table that lacks the column.
    """
    if not (column := getattr(reader.more, role)):
        return
    if column not in df.columns:
        what = "what ended its times" if role == "event" else "how many rows each one stands for"
        raise UserError(f"the table lacks column {column!r}, which says {what}")
    columns = RowColumns(**{role: column})
    ((name, numbers),) = columns.numbers(typed(df, gate.parse(reader.formula), [column])).items()
    inputs[:, reader.extras.index(name) - len(reader.extras)] = torch.as_tensor(numbers)


def _put_series(run: Run, df: pd.DataFrame, inputs: Tensor) -> None:
    """The series of each row and its time, instead of ones, where residuals correlate.

    Raises:
        UserError: for a table that lacks a column of the correlation, or has times that cannot be.
    """
    method, reader = run.fitted.method, run.fitted.federation.about["reader"]
    assert isinstance(method, MixedModel)
    if (correlation := method.network.correlation) is None:
        return
    for name in sorted(correlation.columns):
        if name not in df.columns:
            raise no_column(name, df.columns, f"residuals correlate by {correlation.kind}, and the table lacks column")
    levels, groups = reader.places.levels, reader.places.numbers(df)
    inside = {columns: groups[kind] for kind, columns in levels.inside.items()}
    who = client_names(df[levels.client], f"column {levels.client!r}")
    for name, numbers in correlation.numbers(df, who, inside, rho_known=True).items():
        inputs[:, reader.extras.index(name) - len(reader.extras)] = torch.as_tensor(numbers)


def effects_at_estimates(fitted: Fitted) -> State:
    """Means and roots of the covariances of clients' effects, and of groups inside, given the estimates.

    b_mean (J, q), b_root (J, q, q), and c_mean (J, G, q_in) and c_root; of other responses than gaussian the mode and
    the curvature there. What clients keep of a fit with draws includes the uncertainty of the population.
    """
    method = fitted.method
    assert isinstance(method, MixedModel)
    if NO_ROWS in fitted.federation.about:
        return dict(fitted.federation.about[KEPT])
    effects: State = {}
    own = {**fitted.copies, **fitted.personal}
    with torch.no_grad():
        for clients in passes(fitted):
            index = torch.tensor(clients, dtype=torch.long)
            values = {k: v[index.to(v.device)].unsqueeze(1) for k, v in own.items()}
            chunk = ClientChunk(method, fitted.federation, clients, 0, fitted.seed, fitted.shared, values)
            for name, value in method.likelihood.conditional(chunk, by_short_name(fitted.shared)).items():
                if name not in effects:
                    effects[name] = value.new_zeros(fitted.federation.clients, *value.shape[2:]).cpu()
                effects[name][index] = value.squeeze(1).cpu()
    return effects


def predictor(method: MixedModel, rows: Rows, estimates: State, own: Mapping[str, Tensor] | None) -> Tensor:
    """The linear predictor of rows at the estimates, (N,).

    Args:
        method: whose.
        rows: the rows.
        estimates: shared values by their short names.
        own: effects of clients and groups inside, b_mean and c_mean; None where all random effects are zero.
    """
    columns = rows.columns(method)
    eta = method.predictor(columns, estimates["beta"])[0]
    for level in method.above:
        if level.smooth:  # a curve of the population, too
            eta = eta + linear(columns.for_level(level.kind)[0][0], of_smooth(estimates[level.effects]))
    if own is None:
        return eta
    for level in method.levels:
        if level.smooth:
            continue
        z, group = columns.for_level(level.kind)
        places = None if group is None else group[0].long()
        if level.where == "server":
            assert places is not None
            effects = estimates[level.effects][places]
        else:
            assert rows.owner is not None
            effects = own[f"{level.effects}_mean"][(rows.owner,) if places is None else (rows.owner, places)]
        # The effects of a group that is not known are zero.
        is_known = torch.ones_like(eta) if places is None else (places > 0).to(eta)
        eta = eta + is_known * linear(z[0], effects)
    return eta


def single_client(columns: Columns) -> Columns:
    """Columns of one client's rows without its dimension."""
    return columns.single_client


def group_codes(reader: Reader, df: pd.DataFrame) -> dict[str, np.ndarray]:
    """Numbers from 1 of the groups that rows of a table are of, by level, whether they were fitted or not.

    Raises:
        UserError: for a table that lacks the column of one.
    """
    levels, codes = reader.places.levels, {}
    above = {OUTER: (levels.outer,)} if levels.outer else {}
    for kind, columns in {**levels.inside, **above}.items():
        for name in columns:
            if name not in df.columns:
                raise UserError(f"the table lacks column {name!r}: of which group are its rows?")
        names = group_names(df, columns)
        codes[kind] = np.unique(names.astype(str), return_inverse=True)[1] + 1.0
    return codes
