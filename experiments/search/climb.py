"""Coordinate descent on a grid of settings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hierfl.errors import unknown

from ..methods import load


def climb(
    grid: Mapping[str, Sequence[str]], start: Mapping[str, int], budget: int, value: Callable[[dict[str, str]], float]
) -> int:
    """Coordinate descent on a grid: one setting after the other moves up or down by one place while that is better.

    Args:
        grid: values by setting, in the order in which settings are tried.
        start: where to begin, a place for each setting.
        budget: how many cells are looked at.
        value: of a cell, to be small.

    Returns:
        How many cells have been looked at: fewer than the budget where every neighbour of the best is worse.
    """
    values_seen: dict[tuple[int, ...], float] = {}
    names = [*grid]

    def look(cell: tuple[int, ...]) -> float:
        if cell not in values_seen:
            values_seen[cell] = value({name: grid[name][k] for name, k in zip(names, cell, strict=True)})
        return values_seen[cell]

    cell_now = tuple(start[name] for name in names)
    look(cell_now)
    moved = True
    while moved:
        moved = False
        for axis, name in enumerate(names):
            for step in (1, -1):
                while len(values_seen) < budget:
                    place_next = (*cell_now[:axis], cell_now[axis] + step, *cell_now[axis + 1 :])
                    if not 0 <= place_next[axis] < len(grid[name]) or place_next in values_seen:
                        break
                    if look(place_next) >= look(cell_now) < math.inf:
                        break
                    cell_now, moved = place_next, True  # from where nothing is finite anywhere
    return len(values_seen)


def start_places(method: str, grid: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The start of a search: each setting's position in its list that is nearest to the method's default."""
    defaults: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(load(method).cls.Settings)}
    cells = {}
    for name, values in grid.items():
        if name not in defaults:
            raise unknown(f"setting of {method}", name, defaults)
        if str(defaults[name]) in values or not _numeric([*values, defaults[name]]):
            cells[name] = [*values].index(str(defaults[name])) if str(defaults[name]) in values else 0
            continue
        default = float(defaults[name])
        cells[name] = min(range(len(values)), key=lambda k: _apart(float(values[k]), default))
    return cells


def in_order(grid: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The grid with numbers in order, since a place's neighbours are what is looked at next; falling ones stay so."""
    return {name: _in_order(list(values)) for name, values in grid.items()}


def _in_order(values: list[str]) -> list[str]:
    if not _numeric(values):
        return values
    rising = sorted(values, key=float)
    return values if values == rising[::-1] else rising


def _numeric(values: Sequence[Any]) -> bool:
    try:
        return all(float(v) == float(v) and not isinstance(v, bool) for v in values)
    except ValueError:
        return False


def _apart(a: float, b: float) -> float:
    """How far numbers are apart: steps and strengths differ by factors."""
    return abs(math.log(a / b)) if a > 0 and b > 0 else abs(a - b)
