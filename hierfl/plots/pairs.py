"""Numbers of the population, two by two."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from .posterior_numbers import Posterior
from .registry import Drawing, figure
from .style import PERSONAL, QUIET, axis_for

#: how many numbers are shown at most, and draws of each
MOST_NUMBERS, MOST_DRAWS = 5, 400


def numbers_of_all(data: Any) -> dict[str, np.ndarray]:
    """Numbers that all clients share, {name: draws}, in the order of the posterior's variables."""
    numbers = {}
    for name, value in data.posterior.data_vars.items():
        if "client" in value.dims or {"chain", "draw"} - set(value.dims):
            continue
        draws = value.stack(sample=("chain", "draw")).transpose(..., "sample").values
        for at in product(*map(range, draws.shape[:-1])):
            numbers[f"{name}[{','.join(map(str, at))}]" if at else str(name)] = draws[at]
    return numbers


def _several(posterior: Posterior) -> Iterator[Drawing]:
    if posterior.data.attrs.get("prior_of") == "model" and len(numbers_of_all(posterior.data)) > 1:
        yield "pairs", {"data": posterior.data}


@figure(
    "pairs", "Population and clients",
    f"Draws of the globals, two by two, at most {MOST_NUMBERS} numbers; the diagonal has their histograms.",
    position=2, source="posterior", needs=_several, order=2,
)  # fmt: skip
def pairs(data: Any, ax: Any = None) -> Any:
    """Draws of the globals against each other, each cell from its numbers' least to their largest; the axis.

    Args:
        data: an InferenceData whose posterior has variables without the dimension client.
        ax: where to draw.
    """
    ax, numbers = axis_for(ax), dict(list(numbers_of_all(data).items())[:MOST_NUMBERS])
    names, size = list(numbers), len(numbers)
    unit = {name: _in_cell(draws) for name, draws in numbers.items()}
    for row, below in enumerate(names):
        for column, across in enumerate(names[: row + 1]):
            left, bottom = column, size - 1 - row
            ax.add_patch(_frame(left, bottom))
            if row == column:
                counts, edges = np.histogram(unit[across], bins=20, range=(0, 1))
                heights = 0.9 * counts / counts.max()
                ax.bar(left + edges[:-1], heights, np.diff(edges), bottom, align="edge", color=PERSONAL, alpha=0.7)
            else:
                some = slice(None, None, max(1, len(unit[across]) // MOST_DRAWS))
                ax.scatter(left + unit[across][some], bottom + unit[below][some], s=3, color=PERSONAL, alpha=0.35, lw=0)
    ends = [f"{name}\n{draws.min():.2g} to {draws.max():.2g}" for name, draws in numbers.items()]
    ax.set_xticks(np.arange(size) + 0.5, ends, fontsize=6)
    ax.set_yticks(np.arange(size) + 0.5, names[::-1], fontsize=7)
    ax.set_xlim(0, size)
    ax.set_ylim(0, size)
    ax.grid(visible=False)
    ax.set_title("globals, two by two")
    return ax


def _in_cell(draws: np.ndarray) -> np.ndarray:
    """Draws from 0.05 to 0.95 of a cell."""
    low, high = draws.min(), draws.max()
    return 0.05 + 0.9 * (draws - low) / ((high - low) or 1.0)


def _frame(left: float, bottom: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((left, bottom), 1, 1, fill=False, edgecolor=QUIET, lw=0.6)
