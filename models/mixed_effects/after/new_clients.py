"""Predictions of clients that were not fitted, after some rows of their own.

    p(b_new | D_new, theta)    at the estimates theta, or at every draw of theta

Fitted clients have the same: of a gaussian response in closed form, of others by mode, curvature and Metropolis chains
(:mod:`..likelihood.posterior`). The population theta stays as it was fitted, and so do effects of groups of clients.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hierfl.data.client_names import client_names
from hierfl.data.formula.reader import Reader
from hierfl.errors import UserError
from hierfl.inference.evaluation.new_client import fit_new_client
from hierfl.inference.run.result import Run

from ..model.equations import MixedModel
from ..report.predictions import predicted
from .rows import rows_of

if TYPE_CHECKING:
    import pandas as pd

#: name of a new client where no column has one
NEW = "new"


def predicted_after(run: Run, df: pd.DataFrame, given: pd.DataFrame, interval: float | None) -> pd.DataFrame:
    """See :meth:`hierfl.models.mixed_effects.fitted_model.FittedMixedModel.predict`.

    Args:
        run: the fit.
        df: rows to predict.
        given: rows of the same clients with their responses.
        interval: of both intervals; None for none.
    """
    import pandas as pd

    method, reader = run.fitted.method, run.fitted.federation.about["reader"]
    assert isinstance(method, MixedModel)
    assert isinstance(reader, Reader)
    if method.network.correlation is not None:
        raise UserError("given= is not for a model with correlation=: rows of a series are predicted after one another")
    method.new_client_steps()  # refuses groups inside
    column = reader.places.levels.client
    names, owner = _owners(run, df, column, "df"), _owners(run, given, column, "given")
    if (names is None) != (owner is None):
        without = "df" if names is None else "given"
        raise UserError(f"{without} has no column {column!r}, and the other table has: whose rows are these?")
    parts = []
    for name in [NEW] if names is None else list(dict.fromkeys(names.tolist())):
        places = np.arange(len(df)) if names is None else np.flatnonzero(names == name)
        own = given if owner is None else given[owner == name]
        if not len(own):
            raise UserError(f"given has no rows of client {name!r}")
        part = predicted(_with_client(run, own, name), df.iloc[places], "client", interval)
        parts.append(part.set_axis(places))
    if not parts:
        return predicted(run, df, "new", interval)
    table = pd.concat(parts).sort_index().set_axis(df.index)
    return table.drop(columns="client") if names is None else table


def _owners(run: Run, df: pd.DataFrame, column: str, what: str) -> np.ndarray | None:
    """The client of each row, (n,); None where no column has them.

    Raises:
        UserError: for a client that was fitted.
    """
    if column not in df.columns:
        return None
    names = client_names(df[column], f"column {column!r} of {what}")
    if fitted := [name for name in dict.fromkeys(names.tolist()) if name in run.fitted.federation.ids]:
        raise UserError(f"client {fitted[0]!r} was fitted, and level='new' is of clients that were not")
    return names


def _with_client(run: Run, given: pd.DataFrame, name: str) -> Run:
    """The fit with one client alone, which has the posterior of its effects given its rows."""
    old = run.fitted.federation
    rows = rows_of(run, given, "population", response=True, weights=True)
    assert rows.y is not None
    method = run.fitted.method
    assert isinstance(method, MixedModel)
    for level in method.above:
        group = None if level.smooth else rows.columns(method).for_level(level.kind)[1]
        if group is not None and not bool((group > 0).all()):
            column = old.about["reader"].places.levels.outer
            raise UserError(f"a row of client {name!r} is of a {column!r} that was not fitted, or names none")
    x, y = rows.inputs.to(old.x.device, old.x.dtype), rows.y.to(old.y.device, old.y.dtype)
    return replace(run, fitted=fit_new_client(run.fitted, x, y, 1, name))
