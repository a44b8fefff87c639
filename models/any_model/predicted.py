"""What a fitted plain model says of new rows: of its clients, and of new ones with data of their own or without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from hierfl.data.column_federation import column_federation
from hierfl.data.column_names import as_table
from hierfl.data.column_table import coded
from hierfl.data.far_numbers import warn_of_far
from hierfl.errors import UserError, unknown
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.evaluation.fitted import Fitted
from hierfl.inference.server.explored import systematic
from hierfl.rng import key

from .evaluating import constrained
from .names import CENTRING, DRAWS, OWN_DRAWS
from .own_points import refuse_without_points
from .simulated import Simulator

if TYPE_CHECKING:
    import pandas as pd

    from .plain import PlainModel


#: numbers that a column is given to see whether data depend on it, and draws at which it is tried
TRIED_VALUES, TRIED_DRAWS = (0.0, 1.0, 2.0), 8


def _same(first: Tensor, two: Tensor) -> bool:
    return torch.equal(first.nan_to_num(), two.nan_to_num())


@dataclass(frozen=True)
class Predictor:
    """Draws of observed sites at new rows.

    Attributes:
        fitted: the fit, on the CPU.
        draws: how many of its draws are used; None for all.
    """

    fitted: Fitted
    draws: int | None = None

    @property
    def method(self) -> PlainModel:
        """Whose model."""
        return cast("PlainModel", self.fitted.method)

    @cached_property
    def simulator(self) -> Simulator:
        """The simulator of the method's model."""
        return Simulator(self.method.program, self.method.sites, self.method.network)

    @cached_property
    def _picked(self) -> slice:
        """Which draws: the kept ones are in no order, so that each so many are as good as others."""
        kept = len(self.fitted.shared[DRAWS])
        if self.draws is not None and not 1 <= self.draws <= kept:
            raise UserError(f"draws must be from 1 to {kept}, as many as the fit has kept (draws=N), not {self.draws}")
        return slice(0, self.draws)

    @cached_property
    def observed(self) -> tuple[str, ...]:
        """Sites that can be predicted."""
        drawn = self._simulated(self._one_row({}), "", *self._some)
        return tuple(name for name in self.method.sites.observed if name in drawn)

    @cached_property
    def responses(self) -> frozenset[str]:
        """Columns on which no density depends: with other numbers in them those of the same data are the same."""
        return frozenset(name for name in self.method.network.columns if not self._depends(name))

    @property
    def spread(self) -> dict[str, list[float]]:
        """Mean and standard deviation of the fitted rows' columns that are no responses; empty of earlier runs."""
        known: dict[str, list[float]] = self.fitted.federation.about.get("spread", {})
        return {name: units for name, units in known.items() if name not in self.responses}

    def _depends(self, name: str) -> bool:
        design = self.method.network
        levels = len(design.level_names.get(name, ())) or len(TRIED_VALUES)
        rows = [self._one_row({name: value}) for value in TRIED_VALUES[:levels]]
        x, own = self._some
        try:
            first, *others = self.simulator.densities(
                rows, len(x), constrained(self.method.sites, x), own, self.observed
            )
        except (IndexError, RuntimeError):  # an index of fewer levels than were tried
            return True
        return any(not _same(first[site], other[site]) for site in self.observed for other in others)

    @property
    def _some(self) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Some draws of globals and of the first client's latents, with their centring."""
        own = self.fitted.personal[OWN_DRAWS][0][:TRIED_DRAWS], self.fitted.personal[CENTRING][0]
        return self.fitted.shared[DRAWS][:TRIED_DRAWS], own

    def _one_row(self, values: dict[str, float]) -> Tensor:
        """One row, (columns, 1): the first level of text, ones, or what is said."""
        design = self.method.network
        row = [values.get(name, 0.0 if name in design.level_names else 1.0) for name in design.columns]
        return torch.tensor(row, dtype=torch.float64)[:, None]

    def site(self, name: str | None) -> str:
        """The observed site of this name; the only one, or the first of rows, where none is said.

        Raises:
            UserError: for a site that is not observed, or where it is not sure which one is meant.
        """
        if not self.observed:
            raise UserError("no site is observed but by pyro.factor, which cannot be drawn from: nothing is predicted")
        if name is None:
            if len(self.observed) != 1:
                raise UserError(f"which site? site='NAME' is one of {', '.join(map(repr, self.observed))}")
            return self.observed[0]
        if name not in self.observed:
            raise unknown("observed site", name, self.observed)
        return name

    def of_clients(self, site: str) -> bool:
        """Whether a site is observed once for a client, not by row."""
        columns = torch.zeros(len(self.method.network.columns), 1, dtype=torch.float64)
        values = constrained(self.method.sites, self.fitted.shared[DRAWS][:1])
        own = self.fitted.personal[OWN_DRAWS][0][:1], self.fitted.personal[CENTRING][0]
        return site in self.simulator(columns, 1, 0, values, own, levels=("client",))

    def rows(self, df: pd.DataFrame) -> Tensor:
        """A table's columns as the model reads them, (columns, n); a response that is not there is 0."""
        design = self.method.network
        lacking = [name for name in design.columns if name not in df.columns]
        if lacks := [name for name in lacking if name not in self.responses]:
            raise UserError(f"the table lacks column {lacks[0]!r}, which the model reads")
        return torch.from_numpy(coded(df, design, lacking).to_numpy(dtype=np.float64).T.copy())

    # -- clients ------------------------------------------------------------------------------------------------------

    def of_client(self, columns: Tensor, client: str) -> dict[str, Tensor]:
        """All sites of a client that was fitted, at rows (columns, n)."""
        j = list(self.fitted.federation.ids).index(client)
        picked = self._picked
        own = self.fitted.personal[OWN_DRAWS][j][picked], self.fitted.personal[CENTRING][j]
        return self._simulated(columns, client, self.fitted.shared[DRAWS][picked], own)

    def of_new_client(self, columns: Tensor, client: str, given: pd.DataFrame | None) -> dict[str, Tensor]:
        """All sites of a client that was not fitted; with ``given`` rows of its own it learns from them first."""
        x = self.fitted.shared[DRAWS][self._picked]
        if given is None:
            refuse_without_points(self.method, client)
            return self._simulated(columns, client, x, None)
        x, v, centring = self._learned(given, client, x)
        return self._simulated(columns, client, x, (v, centring))

    def _simulated(
        self, columns: Tensor, client: str, x: Tensor, own: tuple[Tensor, Tensor] | None
    ) -> dict[str, Tensor]:
        values = constrained(self.method.sites, x)
        return self.simulator(columns, len(x), key(self.fitted.seed, "predict", client), values, own)

    def _learned(self, given: pd.DataFrame, client: str, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Joint draws of globals and the latents of a client with rows of its own.

        q(v | x) is fitted to those rows at the final q(x); then the kept draws of the globals are weighted by
        p(rows | x), and at each of them latents are drawn, as in :mod:`.heights`.
        """
        method, fitted = self.method, self.fitted
        frame = coded(given, method.network).assign(_client=client)
        federation, _ = column_federation(frame, "_client", method.network.columns)
        federation = federation.to(dtype=torch.float64)
        begin = {name: value[None, None].clone() for name, value in fitted.initial.items()}
        chunk = ClientChunk(cast("Any", method), federation, [0], 0, fitted.seed, dict(fitted.shared), begin)
        chunk = method.learned(chunk)
        height, latents = method.heights_at_draws(chunk, len(x), "newcomer")
        at = systematic(height[:, 0], len(x), key(fitted.seed, "newcomer", client))
        return x[at], latents[at, 0], chunk.values[CENTRING][0, 0]

    def groups(self, df: pd.DataFrame, client: str | None) -> Iterator[tuple[str, np.ndarray]]:
        """Clients of a table's rows, and which rows are whose."""
        if client is not None:
            yield str(client), np.arange(len(df))
            return
        column = self.fitted.federation.about.get("client")
        if column not in df.columns:
            raise UserError(
                f"the table has no column {column!r} that says whose rows are whose: add it, or say client="
            )
        if missing := int(df[column].isna().sum()):
            raise UserError(
                f"column {column!r} has {missing} missing value{'s' * (missing != 1)}: whose are these rows?"
            )
        names = df[column].astype(str).to_numpy()
        for name in dict.fromkeys(names.tolist()):
            yield name, np.flatnonzero(names == name)


def predictive(
    predictor: Predictor, df: pd.DataFrame, *, client: str | None, site: str, new: bool, given: pd.DataFrame | None
) -> tuple[np.ndarray, list[str]]:
    """Draws of an observed site at the rows of a table, (D, rows, *shape), and the client of each row.

    Raises:
        UserError: for a client that was not fitted, where ``new`` is not said; for one that was, where it is.
    """
    df = as_table(df)
    if not len(df):
        raise UserError("the table has no rows to predict")
    given = None if given is None else as_table(given)
    fitted_clients = set(map(str, predictor.fitted.federation.ids))
    columns = predictor.rows(df)
    warn_of_far(df, predictor.spread)
    whole: np.ndarray | None = None
    clients = [""] * len(df)
    for name, rows in predictor.groups(df, client):
        if not new and name not in fitted_clients:
            raise UserError(
                f"client {name!r} was not fitted: new=True predicts for a new client; given=ITS_ROWS learns"
            )
        if new and name in fitted_clients:
            raise UserError(f"client {name!r} was fitted: leave new and given out, or give a new client another name")
        mine = columns[:, torch.from_numpy(rows)]
        if new:
            draws = predictor.of_new_client(mine, name, None if given is None else _given_rows(predictor, given, name))
        else:
            draws = predictor.of_client(mine, name)
        value = draws[site].numpy()
        if predictor.of_clients(site):
            value = np.repeat(value[:, None], len(rows), 1)
        if whole is None:
            whole = np.empty((len(value), len(df), *value.shape[2:]))
        whole[:, rows] = value
        for k in rows:
            clients[k] = name
    assert whole is not None
    return whole, clients


def _given_rows(predictor: Predictor, given: pd.DataFrame, client: str) -> pd.DataFrame:
    """Rows of a new client among those that are given; all where no column names clients."""
    column = predictor.fitted.federation.about.get("client")
    rows = given if column not in given.columns else given[given[column].astype(str) == client]
    if not len(rows):
        raise UserError(f"given has no rows of client {client!r}")
    return rows
