"""Predictions of clients that were not fitted, after some rows of their own.

    p(b_new, c_new | D_new, theta)    at the estimates theta, or at every draw of theta

Fitted clients have the same: of a gaussian response in closed form, of others by mode, curvature and Metropolis chains
(:mod:`..likelihood.posterior`). The population theta stays as it was fitted, and so do effects of groups of clients. A
new client's groups inside it are numbered by its own rows: a row to predict of another group has that group's prior.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hierfl.data.client_names import client_names
from hierfl.data.column_names import no_column
from hierfl.data.formula import gate
from hierfl.data.formula.groups import Groups
from hierfl.data.formula.missing import without_missing
from hierfl.data.formula.reader import Reader
from hierfl.data.spellings import joined_inside
from hierfl.errors import UserError
from hierfl.inference.evaluation.new_client import fit_new_client
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.run.result import Run

from ..method import MixedEffects
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

    column = _reader(run).places.levels.client
    names, owner = _owners(run, df, column, "df"), _owners(run, given, column, "given")
    if (names is None) != (owner is None):
        without = "df" if names is None else "given"
        raise UserError(f"{without} has no column {column!r}, and the other table has: whose rows are these?")
    parts = []
    for name in [NEW] if names is None else list(dict.fromkeys(names.tolist())):
        rows = np.arange(len(df)) if names is None else np.flatnonzero(names == name)
        own = given if owner is None else given[owner == name]
        if not len(own):
            raise UserError(f"given has no rows of client {name!r}")
        conditional = run_given(run, own, name)
        part = predicted(conditional, df.iloc[rows].assign(**{column: name}), "client", interval)
        parts.append(part.set_axis(rows))
    if not parts:
        return predicted(run, df, "new", interval)
    table = pd.concat(parts).sort_index().set_axis(df.index)
    return table.drop(columns="client") if names is None else table


def _reader(run: Run) -> Reader:
    reader = run.fitted.federation.about["reader"]
    assert isinstance(reader, Reader)
    return reader


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


def run_given(run: Run, given: pd.DataFrame, name: str) -> Run:
    """The fit with one client alone, which has the posterior of its effects given its rows.

    Args:
        run: the fit.
        given: the client's rows with their responses.
        name: of the client.

    Raises:
        UserError: for rows that do not fit, or of a group of clients that was not fitted.
    """
    old, levels = run.fitted.federation, _reader(run).places.levels
    given = given.assign(**{levels.client: name})
    run, given = _with_groups(run, given, name)
    rows = rows_of(run, given, "population", response=True, weights=True, series=True)
    assert rows.y is not None
    method = run.fitted.method
    assert isinstance(method, MixedEffects)
    for level in method.above:
        group = None if level.smooth else rows.columns(method).for_level(level.kind)[1]
        if group is not None and not bool((group > 0).all()):
            raise UserError(f"a row of client {name!r} is of a {levels.outer!r} that was not fitted, or names none")
    x, y = rows.inputs.to(old.x.device, old.x.dtype), rows.y.to(old.y.device, old.y.dtype)
    return replace(run, fitted=fit_new_client(run.fitted, x, y, 1, name, method.schedule().final_steps))


def _with_groups(run: Run, given: pd.DataFrame, name: str) -> tuple[Run, pd.DataFrame]:
    """The fit with numbers for the groups inside a new client, and its rows with one spelling of each group's name.

    Raises:
        UserError: for rows that do not name their groups, or spell a name in two ways.
    """
    fitted, reader = run.fitted, _reader(run)
    levels, method = reader.places.levels, fitted.method
    assert isinstance(method, MixedEffects)
    if not levels.inside:
        return run, given
    for column in levels.inner_columns:
        if column not in given.columns:
            raise no_column(column, given.columns, f"given names no groups inside client {name!r}: it lacks column")
    if fitted.federation.about.get("left_out"):  # rows that lack a value are left out, as they were in the fit
        given, _ = without_missing(given, gate.parse(reader.formula), levels.client, reader.more.columns)
    who = np.full(len(given), name, dtype=object)
    for column in levels.inner_columns:
        given = given.assign(**{column: joined_inside(who, given[column], reader.spellings[column])})
    own = Groups.all_inside(who, given, levels)
    within = {kind: {**reader.places.within.get(kind, {}), **groups} for kind, groups in own.items()}
    about = {**fitted.federation.about, "reader": replace(reader, places=replace(reader.places, within=within))}
    method = method.with_most_groups({kind: len(groups[name]) for kind, groups in own.items()})
    # What a client keeps has a row for each group, and the new client has another number of groups.
    initial = {**fitted.initial, **method.personal(InitialWeights.for_network(method.network, 0))}
    federation = replace(fitted.federation, about=about)
    return replace(run, fitted=replace(fitted, method=method, federation=federation, initial=initial)), given
