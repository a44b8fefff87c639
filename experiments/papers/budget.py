"""Which cells of a table come first, and when no more are begun."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hierfl.errors import UserError

from ..grid import Cell, is_finished
from .cells import why_not
from .costs import measured, seconds_per_round
from .definition import EntryKey, Table
from .published import numbers_of

Cells = Sequence[tuple[EntryKey, Cell]]


def in_order(
    table: Table, cells: Cells, out: Path, extra: Mapping[str, Any], root: Path
) -> list[tuple[EntryKey, Cell]]:
    """Cells with most to say first: of the first seed, of headline methods, of published numbers, the cheapest.

    Cells that cannot be run here come last.
    """
    costs = estimates(cells, out, extra)
    published = {entry for entry, _ in numbers_of(table)}

    def key(pair: tuple[EntryKey, Cell]) -> tuple[Any, ...]:
        entry, cell = pair
        minor = bool(table.headline) and entry.method not in table.headline
        return bool(why_not(table, entry, root)), cell.seed, minor, entry not in published, costs[cell.name][0]

    return sorted(cells, key=key)


def estimates(cells: Cells, out: Path, extra: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    """Seconds that each cell would take, by its name, and how that is known; 0 for those that have finished."""
    measured_seconds, costs = measured(cells, out), {}
    for entry, cell in cells:
        seconds_each, how = seconds_per_round(entry, measured_seconds)
        try:
            rounds = 0 if is_finished(out / cell.name) else cell.config(extra).run.rounds
        except UserError:  # it cannot be run, and says so when it is begun
            rounds = 0
        costs[cell.name] = rounds * seconds_each, how
    return costs


def plan(cells: Cells, out: Path, extra: Mapping[str, Any], hours: float | None) -> str:
    """How long the cells that are missing would take, how that is known, and what a budget reaches, in a line."""
    costs = estimates(cells, out, extra)
    missing = [costs[cell.name] for _, cell in cells if not is_finished(out / cell.name)]
    ways = {how: sum(way == how for _, way in missing) for _, how in missing}
    total = sum(seconds for seconds, _ in missing) / 3600
    ways_in_words = ", or ".join(f"{how} ({many} cell{'s' * (many > 1)})" for how, many in ways.items())
    time = f"about {total:.1f} hours" if total >= 1 else f"about {60 * total:.0f} minutes"
    source = f"; seconds of a round are {ways_in_words}" if missing else ""
    line = f"{len(missing)} of {len(cells)} cells to run, {time}{source}"
    if hours is None:
        return line
    reached, used = 0, 0.0
    for seconds, _ in missing:
        if used >= 3600 * hours:
            break
        reached, used = reached + 1, used + seconds
    return f"{line}; a budget of {hours:g} hours reaches about {reached}"


def within(hours: float | None, clock: Callable[[], float] = time.monotonic) -> Callable[[], bool]:
    """Whether a budget is left, from now on; None is without end."""
    start = clock()
    return lambda: hours is None or clock() - start < 3600 * hours
