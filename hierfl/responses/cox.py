"""Cox's proportional hazards: the baseline hazard steps at quantiles of the event times, at as many as are asked for.

Of ever more cuts this is Cox's model with Breslow's estimate of the baseline hazard (Holford, Biometrics 36:299, 1980;
Whitehead, Applied Statistics 29:268, 1980). Its likelihood is a sum over rows, which Cox's partial likelihood is not.

Quantiles come from how many events lie in each half octave of time, [2^(k / 2), 2^((k + 1) / 2)). Such counts add up
over sites. Fewer than :data:`FEWEST` events of a client are counted with its next ones, where the middle one of them
lies. Inside a half octave events are taken for evenly spread in log time: quantiles are not exact, and need not be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..errors import UserError
from .base import Response
from .exponential import ExponentialResponse

#: half octaves from 2^-20 to 2^20; earlier and later times count in the outermost ones
FIRST_BIN, BINS = -40, 80
#: intervals of the baseline hazard where nothing is said, and about the fewest events of one
INTERVALS, EVENTS = 20, 5
#: events of a client that are counted alone
FEWEST = 5


@dataclass(frozen=True)
class CoxResponse(ExponentialResponse):
    """Hazards that step at quantiles of event times."""

    name = "cox"
    about = "times; any baseline hazard, in steps at quantiles of event times: *log hazards*; `--set intervals=20`"
    ratio = "hazard ratio"
    order = 110
    columns = ("event",)
    bins: ClassVar[int] = BINS
    settings: ClassVar[Mapping[str, tuple[str, str]]] = {
        "intervals": (
            "intervals of time in which the baseline hazard is constant, with as many events each; empty for 20",
            "intervals are of a cox response's hazard",
        )
    }

    @classmethod
    def histogram(cls, y: np.ndarray, rows: Mapping[str, np.ndarray], who: np.ndarray) -> np.ndarray:
        """Events in each half octave, (bins,); no client's are from 1 to 4, unless it has no more."""
        event = rows.get("event", np.ones_like(y)) > 0
        position = np.floor(2 * np.log2(y[event])).astype(int) - FIRST_BIN
        client = np.unique(who[event], return_inverse=True)[1].reshape(-1)
        cells = client * BINS + position.clip(0, BINS - 1)
        counts = np.bincount(cells, minlength=BINS * (client.max(initial=0) + 1)).reshape(-1, BINS)
        return pooled(counts, FEWEST).sum(0).astype(float)

    @classmethod
    def from_design(cls, design: Any, settings: Any) -> Response:
        """See :class:`.base.Response`."""
        number = read_intervals(settings.intervals)
        if not design.histogram:  # before anything is known of the times
            return cls(tuple(float(k) for k in range(1, number)))
        return cls(quantile_cuts(design.histogram, number))


def pooled(counts: np.ndarray, least: int) -> np.ndarray:
    """Counts of which none is from 1 to ``least`` - 1, unless all of a row are fewer.

    Neighbours are added up until they are enough; what is left at the end is of the last ones. The sum is where the
    middle one of them lies.

    Args:
        counts: of rows in order, (J, bins) whole numbers.
        least: above zero.
    """
    run, waiting, closed = np.zeros_like(counts), np.zeros(len(counts), dtype=int), np.zeros(len(counts), dtype=int)
    for k in range(counts.shape[1]):
        run[:, k] = closed
        waiting = waiting + counts[:, k]
        closed, waiting = closed + (waiting >= least), np.where(waiting >= least, 0, waiting)
    run = np.minimum(run, np.maximum(closed - 1, 0)[:, None])
    totals = np.zeros_like(counts)
    np.add.at(totals, (np.arange(len(counts))[:, None], run), counts)
    before = np.take_along_axis(totals.cumsum(1) - totals, run, 1)
    total, until = np.take_along_axis(totals, run, 1), counts.cumsum(1) - before
    middle = (2 * until >= total) & (2 * (until - counts) < total)
    return np.where(middle, total, 0)


def quantile_cuts(histogram: Sequence[float], number: int) -> tuple[float, ...]:
    """Times between which about as many events lie.

    Args:
        histogram: events in each half octave, (bins,).
        number: of intervals.

    Raises:
        UserError: for hardly any events.
    """
    counts = np.asarray(histogram, dtype=float)
    events = counts.sum()
    if number > 1 and events < EVENTS * number:
        most = max(1, int(events // EVENTS))
        raise UserError(
            f"{number} intervals of a cox response's hazard need {EVENTS * number} events, and there are {events:g}: "
            f"say intervals={most} or fewer"
        )
    before = np.r_[0.0, counts.cumsum()]
    wanted = events * np.arange(1, number) / number
    position = np.searchsorted(before, wanted, side="left") - 1
    inside = (wanted - before[position]) / counts[position]
    return tuple((2.0 ** ((FIRST_BIN + position + inside) / 2)).tolist())


def read_intervals(text: str) -> int:
    """Intervals as they are written; :data:`INTERVALS` where nothing is.

    Raises:
        UserError: for anything but a whole number from 1 to 200.
    """
    if not text.strip():
        return INTERVALS
    if not text.strip().isdecimal() or not 1 <= int(text) <= 200:
        raise UserError(f"intervals are one whole number from 1 to 200, such as 20, not {text[:60]!r}")
    return int(text)
