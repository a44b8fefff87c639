"""One number in the population and at some clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..arviz_data import dataset, group_names
from ..errors import UserError
from .distributions import intervals
from .legible import short_names, title
from .posterior_numbers import Posterior, Which, clients_by_size, most_variable, number_of, words
from .registry import Drawing, figure
from .style import PERSONAL, QUIET, axis_for

INTERVAL = 0.9


def _random(posterior: Posterior) -> Iterator[Drawing]:
    if posterior.random and not _of_model(posterior.data):
        yield "forest", {"data": posterior.data, "which": posterior.most_variable}


def _random_of_model(posterior: Posterior) -> Iterator[Drawing]:
    if posterior.random and _of_model(posterior.data):
        yield "forest-clients", {"data": posterior.data, "which": posterior.most_variable}


def _of_model(data: Any) -> bool:
    """Whether all is drawn from the prior, globals too: a client without data has another distribution."""
    return data.attrs.get("prior_of") == "model"


@figure(
    "forest", "Population and clients",
    "The parameter with the largest differences between clients: highest-density 90 % and central half. The "
    "population is the distribution of a client without data.",
    position=1, source="posterior", needs=_random, order=1,
)  # fmt: skip
def forest(data: Any, which: Which | None = None, clients: Sequence[str] = (), ax: Any = None) -> Any:
    """One number in the population and at some clients: highest-density 90 % and central half; the axis.

    Args:
        data: an InferenceData.
        which: the number; by default :func:`~hierfl.plots.posterior_numbers.most_variable`.
        clients: by name; by default eleven from the largest to the smallest.
        ax: where to draw.
    """
    ax, (name, coordinates) = axis_for(ax), which or most_variable(data)
    coordinates = {k: v for k, v in coordinates.items() if k != "client"}
    names = list(clients) or clients_by_size(data, 11)
    sizes = dict(zip(data.posterior["client"].values, data.constant_data["n"].values, strict=True))
    values = number_of(data, (name, coordinates), client=False)
    if strange := [who for who in names if who not in sizes]:
        raise UserError(f"no client {strange[0]!r}")
    labels = [f"{short_name}  (n = {sizes[who]})" for short_name, who in zip(short_names(names), names, strict=True)]
    rows = {label: values.sel(client=who, drop=True) for label, who in zip(labels, names, strict=True)}
    prior = dataset(data, "prior") if "prior" in group_names(data) else {}
    if not _of_model(data) and name in prior:
        # Each draw is of a client picked at random, since the prior's width may be a client's own.
        drawn = prior[name].sel(coordinates).stack(sample=("chain", "draw")).transpose("sample", "client").values
        rows = {"population": drawn[np.arange(len(drawn)), np.arange(len(drawn)) % drawn.shape[1]], **rows}
    intervals({row: np.asarray(draws) for row, draws in rows.items()}, INTERVAL, PERSONAL, ax)
    ax.axvline(0, color=QUIET, lw=0.8, ls="--", zorder=0)
    title(ax, f"{words((name, coordinates))}: {'population and ' * ('population' in rows)}clients, 90 % HDI")
    return ax


@figure(
    "forest-clients", "Population and clients",
    "The parameter with the largest differences between clients, at eleven clients at most, from the largest to the "
    "smallest: highest-density 90 % and central half.",
    position=1, source="posterior", needs=_random_of_model, order=1,
)  # fmt: skip
def forest_of_clients(data: Any, which: Which | None = None, clients: Sequence[str] = (), ax: Any = None) -> Any:
    """:func:`forest` of a posterior whose globals are random too; the axis."""
    return forest(data, which, clients, ax)
