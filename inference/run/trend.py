"""Whether a metric was still getting better when a fit ended, by its curve on validation or training data.

The last half of the evaluations is fitted by a line. Its slope counts where it exceeds three standard errors. Residuals
may be correlated from one evaluation to the next, which widens the error as for a first-order process. A curve that has
risen early in this window and is level at its end has a slope, too. So the second half of the window must rise by
itself, by as much as is of use. Curves of test data are never looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

#: evaluations in the window, at least; and the share of all evaluations that it has
LEAST_POINTS, WINDOW_SHARE = 6, 0.5
#: standard errors of the slope in the whole window, and in its second half
WHOLE_ERRORS, HALF_ERRORS = 3.0, 1.5
#: a smaller change is of no use: of a fraction, and of another metric relative to its size
LEAST_FRACTION, LEAST_RELATIVE = 0.005, 0.01
#: validation examples more that must be right, net: one of so many is chance, by two standard errors of a Poisson count
LEAST_EXAMPLES = 4
#: what a fit is judged by, and which way is better
JUDGED = {"pm_accuracy": 1.0, "pm_rmse": -1.0}


@dataclass(frozen=True)
class Trend:
    """What the last evaluations of a fit say.

    Attributes:
        metric: in a row of metrics.csv.
        split: on which data: "validation" or "train".
        kind: "rising" where it was still getting better, else "flat".
        change: by how much over the window, positive for better; in the metric's unit.
        error: its standard error.
        first, last: rounds of the window.
    """

    metric: str
    split: str
    kind: Literal["rising", "flat"]
    change: float
    error: float
    first: int
    last: int

    @property
    def words(self) -> str:
        """The trend in words, for a line on the screen."""
        way = "rising" if JUDGED[self.metric] > 0 else "falling"
        return f"{self.split} {f'still {way}' if self.kind == 'rising' else 'flat'}"


def trend_of(rows: Sequence[Mapping[str, Any]], examples: int | None = None, until: int | None = None) -> Trend | None:
    """The trend of a fit.

    Args:
        rows: evaluations, as of :attr:`~hierfl.inference.run.result.Run.evaluations`.
        examples: of all clients' validation data, where their number is known.
        until: the last round that counts; None for all. Final chains make another kind of prediction.

    Returns:
        None where there are too few evaluations on validation or training data.
    """
    for split in ("validation", "train"):
        for metric, sign in JUDGED.items():
            curve = [
                (row["round"], float(row[metric]))
                for row in rows
                if row["split"] == split and row.get(metric) is not None and (until is None or row["round"] <= until)
            ]
            size = max(LEAST_POINTS, int(len(curve) * WINDOW_SHARE))
            if len(curve) >= size:
                rounds, values = np.array(curve[-size:]).T
                return _trend(metric, split, rounds, sign * values, examples if split == "validation" else None)
    return None


def _trend(metric: str, split: str, rounds: np.ndarray, values: np.ndarray, examples: int | None) -> Trend:
    span = rounds[-1] - rounds[0]
    slope, error = line(rounds, values)
    late = rounds[len(rounds) // 2 :]
    half, half_error = line(late, values[-len(late) :])
    change, late_change = slope * span, half * (late[-1] - late[0])
    enough = LEAST_FRACTION if metric == "pm_accuracy" else LEAST_RELATIVE * abs(float(values[-1]))
    if metric == "pm_accuracy" and examples:
        enough = max(enough, LEAST_EXAMPLES / examples)
    sure = slope > WHOLE_ERRORS * error and half > HALF_ERRORS * half_error
    rising = sure and min(change, late_change) >= enough
    first, last = int(rounds[0]), int(rounds[-1])
    return Trend(metric, split, "rising" if rising else "flat", change, error * span, first, last)


def line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Slope of a least-squares line through (n,) points, and its standard error under first-order autocorrelation."""
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    left = y - y.mean() - slope * centred
    if not (total := float(left @ left)):
        return slope, 0.0
    # Residuals of a line are correlated by about -1 / n each where the noise is not: Kendall's bias, added back.
    correlation = float(left[1:] @ left[:-1]) / total + 3 / len(x)
    wider = (1 + (r := min(max(correlation, 0.0), 0.9))) / (1 - r)
    return slope, float(np.sqrt(total / max(1, len(x) - 2) / (centred @ centred) * wider))
