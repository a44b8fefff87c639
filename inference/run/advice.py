"""What a run's own numbers say its user should try: at most two lines, none of which rests on test data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..calibration.temperature_gain import temperature_gain
from ..method.capabilities import Converges
from .trend import JUDGED, Trend, trend_of

if TYPE_CHECKING:
    from .result import Run

#: lines, at most
MAX_LINES = 2
#: a temperature is worth a line from so many standard errors on, and from this part of the NLL. (Where none is needed
#: the mean gain is below zero: the other half's temperature is a little off.)
MIN_STANDARD_ERRORS, LEAST_PART = 2.0, 0.03


def advice(run: Run) -> list[str]:
    """Lines for the reader of a run; none where there is nothing to try.

    Args:
        run: a fit, with the clients' data that are here.
    """
    return [line for line in (_rounds(run), _temperature(run)) if line][:MAX_LINES]


def _rounds(run: Run) -> str:
    """Whether more rounds would help, by the curve on validation or training data."""
    method, rounds = run.fitted.method, run.rounds
    if isinstance(method, Converges) or not rounds:
        return ""  # it knows by itself when it has arrived, and says so
    schedule = method.schedule()
    final = bool(schedule.final_steps) and schedule.final_when == "end"
    has_curve = not run.options.masked and run.held_out
    examples = int(run.held_out[-1][1][:, 0].sum()) if has_curve else None
    trend = trend_of(run.evaluations, examples, rounds - 1 if final else None)
    return "" if trend is None or trend.kind == "flat" else _rising(trend, rounds)


def _rising(trend: Trend, rounds: int) -> str:
    percent = trend.metric == "pm_accuracy"
    name, way = trend.metric.removeprefix("pm_"), "rising" if JUDGED[trend.metric] > 0 else "falling"
    name = name if percent else name.upper()
    size = f"{100 * trend.change:.1f} points" if percent else f"{trend.change:.3g}"
    error = f"{100 * trend.error:.1f}" if percent else f"{trend.error:.2g}"
    data = {"validation": "validation", "train": "training"}[trend.split]
    over = f"by {size} (standard error {error}) over rounds {trend.first} to {trend.last}"
    return f"{name} on {data} data was still {way}, {over}: try rounds={2 * rounds} (--rounds)"


def _temperature(run: Run) -> str:
    """Whether a temperature would help, by validation data that it was not chosen on."""
    options, federation = run.options, run.fitted.federation
    hidden = options.masked or options.dp != "none" or federation.outline
    if options.calibrate != "none" or hidden or federation.task != "classification" or not run.rounds:
        return ""
    gain = temperature_gain(run.fitted, options.chunk)
    if gain is None:
        return ""
    less = gain.before - gain.after
    if less <= MIN_STANDARD_ERRORS * gain.error or less < LEAST_PART * gain.before:
        return ""
    between = " and ".join(f"{t:.2f}" for t in gain.temperatures)
    return (
        f"calibrate=temperature (--calibrate) would lower NLL from {gain.before:.3f} to {gain.after:.3f} (standard "
        f"error of the difference {gain.error:.2g}) on validation data of clients that it was not chosen on, "
        f"with T {between}"
    )
