"""Data sets from a model's own prior: globals, clients' latents, and the columns that are observed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from pyro.distributions import Unit
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from hierfl.data.column_design import ColumnDesign
from hierfl.errors import UserError
from hierfl.rng import key

from ..running import running
from ..simulated import Simulator
from ..sites import Model, Sites, read_trace
from ..values import Values


@dataclass(frozen=True)
class Cells:
    """What an observed site observes.

    Attributes:
        column: of the table.
        row: of a client, where it is one alone, as of a time in a chain; None of all rows.
    """

    column: str
    row: int | None = None


def responses(model: Model, design: ColumnDesign, columns: Tensor) -> dict[str, Cells]:
    """What each observed site observes, where all of them can be simulated: see :func:`observed_cells`.

    What depends on an earlier response by the value that ``pyro.sample`` has returned is drawn in that order.

    Raises:
        UserError: as there; and for a column of responses on which the distribution of a site depends.
    """
    observed, before = observed_cells(model, design, columns), _sites(model, design, columns)
    observed_values = {name: before[name]["value"] for name in observed}
    for column in dict.fromkeys(cells.column for cells in observed.values()):
        after = _sites(model, design, _moved(design, columns, column), observed_values)
        for site in before:
            value = before[site]["value"]
            if site not in after:
                continue
            densities = before[site]["fn"].log_prob(value), after[site]["fn"].log_prob(value)
            # What is no number is refused later, with its reason.
            if not torch.allclose(*densities, rtol=0, atol=0, equal_nan=True):
                by = next(name for name, cells in observed.items() if cells.column == column)
                raise UserError(
                    f"site {site!r} depends on column {column!r}, which {by!r} observes, so that it cannot be drawn "
                    "after it: write earlier responses as what pyro.sample returned for them, in a pyro.markov loop"
                )
    return observed


def observed_cells(model: Model, design: ColumnDesign, columns: Tensor) -> dict[str, Cells]:
    """What each observed site observes: {site: cells}.

    A site observes a column, or one row of it, where its value is just that, and follows when that is changed.

    Args:
        model, design: the model, and the columns it reads.
        columns: of one client, (columns, n).

    Raises:
        UserError: for a site that observes something else, cells that are observed twice, or a ``pyro.factor``.
    """
    before = _sites(model, design, columns)
    observed = [name for name, site in before.items() if site["is_observed"]]
    cells_of: dict[str, Cells] = {}
    for i, column in enumerate(design.columns):
        moved = _moved(design, columns, column)
        try:
            after = _sites(model, design, moved)
        except UserError:  # another number may be impossible in a covariate, such as an index
            continue
        for name in observed:
            values = before[name]["value"], after[name]["value"] if name in after else None
            cells = _cells(column, values, columns[i], moved[i])
            if cells is not None:
                cells_of.setdefault(name, cells)
    _refuse_unknown(observed, cells_of)
    return _of_clients(cells_of)


def _refuse_unknown(observed: Sequence[str], cells_of: Mapping[str, Cells]) -> None:
    if not observed:
        raise UserError("the model observes no site: there is nothing to simulate")
    for name in observed:
        if name not in cells_of:
            raise UserError(
                f"site {name!r} does not observe a column, or a row of one, as it is: its data cannot be replaced; "
                "observe batch[...] itself, and make what is computed of it a column of the table"
            )
    cells = list(cells_of.values())
    for cell in cells:
        if cells.count(cell) > 1 or (cell.row is not None and Cells(cell.column) in cells):
            raise UserError(f"column {cell.column!r} is observed by two sites: which of them draws it is not clear")


def _cells(column: str, values: tuple[Tensor, Tensor | None], before: Tensor, after: Tensor) -> Cells | None:
    """What a site observes of a column (n,) that was changed, by its values before and after; None for nothing."""
    if values[1] is None:
        return None
    old, new = (value.double().flatten() for value in values if value is not None)
    if torch.equal(old, before) and torch.equal(new, after):
        return Cells(column) if len(before) > 1 else Cells(column, 0)
    if len(old) != 1 or len(new) != 1:
        return None
    row = next((k for k in range(len(before)) if old[0] == before[k] and new[0] == after[k]), None)
    return None if row is None else Cells(column, row)


def _of_clients(cells_of: dict[str, Cells]) -> dict[str, Cells]:
    """Cells by name, a client's first row instead of all where no site observes another row of the column."""
    columns = [cells.column for cells in cells_of.values()]
    return {
        name: Cells(cells.column) if cells.row == 0 and columns.count(cells.column) == 1 else cells
        for name, cells in cells_of.items()
    }


def _sites(
    model: Model, design: ColumnDesign, columns: Tensor, observed_values: Mapping[str, Tensor] = MappingProxyType({})
) -> dict[str, dict[str, Any]]:
    """The sites of a run that have a density; those that are observed may be held at other values."""
    with _Held(observed_values):
        trace = read_trace(model, design.named(columns, None))
    sites = {
        name: site
        for name, site in trace.nodes.items()
        if site["type"] == "sample" and not site["infer"].get("_deterministic") and not site_is_subsample(site)
    }
    if factor := next((name for name, site in sites.items() if isinstance(site["fn"], Unit)), None):
        raise UserError(
            f"site {factor!r} is a pyro.factor, from which no data can be drawn: observe a column under a "
            "distribution, by pyro.sample(..., obs=batch[...])"
        )
    return sites


class _Held(Messenger):
    """Gives observed sites other values."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.values = values

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if msg["is_observed"] and msg["name"] in self.values:
            msg["value"] = self.values[msg["name"]]


def _moved(design: ColumnDesign, columns: Tensor, column: str) -> Tensor:
    """The columns with another number in each row of one of them; all differences differ."""
    other = columns.clone()
    other[design.columns.index(column)] += torch.arange(1, columns.shape[-1] + 1)
    return other


@dataclass(frozen=True)
class Simulated:
    """R data sets.

    Attributes:
        globals: what was drawn, on their supports, {site: (R, *shape)}.
        clients: of each client's latents, {site: (R, *shape)}.
        columns: of each client, (R, columns, n_j).
    """

    globals: Values
    clients: Sequence[Values]
    columns: Sequence[Tensor]


def simulate(
    model: Model, sites: Sites, design: ColumnDesign, rows: Sequence[Tensor], observed: Mapping[str, Cells], count: int,
    *seed: object,
) -> Simulated:  # fmt: skip
    """Draws R data sets.

    Args:
        model, sites, design: the model.
        rows: of each client, (columns, n_j).
        observed: see :func:`responses`.
        count: R.
        seed: keys them.

    Raises:
        UserError: for a prior that cannot be drawn from.
    """
    if points := [latent.name for latent in sites.latents if latent.parameter]:
        raise UserError(f"pyro.param {points[0]!r} has no prior to simulate from: write it as pyro.sample with one")
    simulator = Simulator(model, sites, design)
    with running(model):
        drawn = simulator(rows[0], count, key(*seed, "globals"), levels=("global",)) if sites.globals else {}
        everyones = {latent.name: drawn[latent.name].reshape(count, *latent.shape) for latent in sites.globals}
        own, columns = [], []
        for j, table in enumerate(rows):
            drawn_of_client = simulator(table, count, key(*seed, "client", j), everyones, levels=("client", "data"))
            made = table.expand(count, *table.shape).clone()
            for site in [name for name in observed if name in drawn_of_client]:  # a shorter client has fewer times
                cells, value = observed[site], drawn_of_client[site].double().reshape(count, -1)
                rows_of = slice(None) if cells.row is None else slice(cells.row, cells.row + 1)
                made[:, design.columns.index(cells.column), rows_of] = value
            own.append(
                {latent.name: drawn_of_client[latent.name] for latent in sites.clients if latent.level == "client"}
            )
            columns.append(made)
    return Simulated({latent.name: drawn[latent.name] for latent in sites.globals}, own, columns)
