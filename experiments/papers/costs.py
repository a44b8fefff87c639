"""How long a cell would take: seconds of a round that were measured, times its rounds.

In this order: the same method, data and number of clients in runs of this folder; the same in ``seconds.csv`` beside
this file, which holds committed results of other machines; the same method on these data with another number of
clients; the median of all methods on these data; of all there is.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path

from ..grid import Cell, is_finished
from ..run_folder.summary import read_summary
from .definition import EntryKey


@cache
def _earlier() -> dict[tuple[str, int, str], float]:
    text = (files("hierfl.experiments.papers") / "seconds.csv").read_text()
    return {
        (row["data"], int(row["clients"]), row["method"]): float(row["seconds"])
        for row in csv.DictReader(io.StringIO(text))
    }


def measured(cells: Iterable[tuple[EntryKey, Cell]], out: Path) -> dict[tuple[str, int, str], float]:
    """Seconds of a round of the cells that have finished in a folder, by data, clients and method."""
    seconds_of: dict[tuple[str, int, str], list[float]] = {}
    for entry, cell in cells:
        if is_finished(out / cell.name):
            seconds = read_summary(out / cell.name).get("seconds_per_round")
            if seconds:
                seconds_of.setdefault((entry.data, entry.clients, entry.method), []).append(float(seconds))
    return {key: statistics.mean(values) for key, values in seconds_of.items()}


def seconds_per_round(entry: EntryKey, seconds_here: Mapping[tuple[str, int, str], float]) -> tuple[float, str]:
    """The seconds per round of a cell, and how that is known.

    Args:
        entry: the cell.
        seconds_here: :func:`measured` in this folder.
    """
    key = (entry.data, entry.clients, entry.method)
    seconds_known = {**_earlier(), **seconds_here}
    if key in seconds_here:
        return seconds_here[key], "measured here"
    if key in seconds_known:
        return seconds_known[key], "measured earlier, on another machine"
    alike = [v for (data, _, method), v in seconds_known.items() if (data, method) == (entry.data, entry.method)]
    if alike:
        return statistics.median(alike), "of this method with other numbers of clients"
    beside = [v for (data, _, _), v in seconds_known.items() if data == entry.data]
    if beside:
        return statistics.median(beside), "the median of other methods on these data"
    return statistics.median(seconds_known.values()), "the median of all methods and data, a guess"
