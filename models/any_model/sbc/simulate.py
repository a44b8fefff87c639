"""Data sets from a model's own prior: globals, clients' latents, and the columns that are observed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pyro.distributions import Unit
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from hierfl.data.column_design import ColumnDesign
from hierfl.errors import UserError
from hierfl.rng import key

from ..running import running
from ..simulated import Simulator
from ..sites import Model, Sites, read_trace
from ..values import Values


def responses(model: Model, design: ColumnDesign, columns: Tensor) -> dict[str, str]:
    """Which column each observed site observes, where all of them can be simulated: see :func:`observed_columns`.

    Raises:
        UserError: as there; and for a response on which the distribution of a site depends.
    """
    found, before = observed_columns(model, design, columns), _sites(model, design, columns)
    for name, column in found.items():
        after = _sites(model, design, _moved(design, columns, column))
        for site in before:
            value = before[site]["value"]
            if site not in after:
                continue
            densities = before[site]["fn"].log_prob(value), after[site]["fn"].log_prob(value)
            # (what is no number is refused later, with its reason)
            if not torch.allclose(*densities, rtol=0, atol=0, equal_nan=True):
                raise UserError(
                    f"site {site!r} depends on column {column!r}, which {name!r} observes: rows that follow from "
                    "earlier responses cannot be simulated at once"
                )
    return found


def observed_columns(model: Model, design: ColumnDesign, columns: Tensor) -> dict[str, str]:
    """Which column each observed site observes: {site: column}.

    A column is one where the site's value is the column itself, and follows when it is changed.

    Args:
        model, design: the model, and the columns it reads.
        columns: of one client, (columns, n).

    Raises:
        UserError: for a site that observes something else than a column, a column that is observed twice, or a
            ``pyro.factor``.
    """
    before = _sites(model, design, columns)
    found: dict[str, str] = {}
    for name in [name for name, site in before.items() if site["is_observed"]]:
        same = [
            column
            for column, values in zip(design.columns, columns, strict=True)
            if _equal(before[name]["value"], values) and _follows(model, design, columns, column, name, before)
        ]
        if not same:
            raise UserError(f"site {name!r} does not observe a column as it is: its data cannot be replaced")
        if same[0] in found.values():
            raise UserError(f"column {same[0]!r} is observed by two sites: which of them draws it is not clear")
        found[name] = same[0]
    if not found:
        raise UserError("the model observes no site: there is nothing to simulate")
    return found


def _sites(model: Model, design: ColumnDesign, columns: Tensor) -> dict[str, dict[str, Any]]:
    """The sites of a run that have a density."""
    trace = read_trace(model, design.named(columns, None))
    found = {
        name: site
        for name, site in trace.nodes.items()
        if site["type"] == "sample" and not site["infer"].get("_deterministic") and not site_is_subsample(site)
    }
    if factor := next((name for name, site in found.items() if isinstance(site["fn"], Unit)), None):
        raise UserError(f"site {factor!r} is a pyro.factor, from which no data can be drawn: write a distribution")
    return found


def _equal(value: Tensor, column: Tensor) -> bool:
    if value.numel() not in (1, column.numel()):
        return False
    return bool((value.double().flatten() == column.flatten()[: value.numel()]).all())


def _follows(
    model: Model, design: ColumnDesign, columns: Tensor, column: str, name: str, before: dict[str, dict[str, Any]]
) -> bool:  # fmt: skip
    """Whether a site's value moves with a column."""
    try:
        after = _sites(model, design, _moved(design, columns, column))
    except UserError:  # (another number may be impossible in a covariate, such as an index)
        return False
    return torch.equal(after[name]["value"], before[name]["value"] + 1)


def _moved(design: ColumnDesign, columns: Tensor, column: str) -> Tensor:
    other = columns.clone()
    other[design.columns.index(column)] += 1
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
    model: Model, sites: Sites, design: ColumnDesign, rows: Sequence[Tensor], observed: dict[str, str], count: int,
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
    if points := [of.name for of in sites.latents if of.parameter]:
        raise UserError(f"pyro.param {points[0]!r} has no prior to simulate from: write it as pyro.sample with one")
    simulator = Simulator(model, sites, design)
    with running(model):
        drawn = simulator(rows[0], count, key(*seed, "globals"), levels=("global",)) if sites.globals else {}
        everyones = {of.name: drawn[of.name].reshape(count, *of.shape) for of in sites.globals}
        own, columns = [], []
        for j, one in enumerate(rows):
            found = simulator(one, count, key(*seed, "client", j), everyones, levels=("client", "data"))
            made = one.expand(count, *one.shape).clone()
            for site, column in observed.items():
                value = found[site].double().reshape(count, -1)
                made[:, design.columns.index(column)] = value.expand(count, one.shape[-1])
            own.append({of.name: found[of.name] for of in sites.clients if of.level == "client"})
            columns.append(made)
    return Simulated({of.name: drawn[of.name] for of in sites.globals}, own, columns)
