"""Reliability diagrams: accuracy against confidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..metrics.registry import MIN_TEST_EXAMPLES
from .legible import grow, legend_below, short_names
from .registry import Drawing, figure
from .style import COLOURS, GLOBAL, INK, MAX_NAMED_CLIENTS, PERSONAL, QUIET, axis_for
from .tables import RunTables

#: predictions of a bin that says something: of all clients, of one
MIN_BIN, MIN_CLIENT_BIN = 10, 5
#: height of the counts below a diagram, in units of its own
STRIP = 0.3


def _diagram(run: RunTables) -> Iterator[Drawing]:
    if run.bins is not None and run.bins.sum() > 0:
        yield "reliability", {"bins": run.bins, "averaged": run.averaged, "tempered": run.tempered}


def _diagram_of_clients(run: RunTables) -> Iterator[Drawing]:
    if run.bins is not None and (run.bins.sum((1, 2)) > 0).sum() > 1:  # of one client it is the same figure
        yield "reliability-clients", {"bins": run.bins, "names": list(run.clients["client"])}


@figure(
    "reliability", "Calibration",
    "A calibrated model lies on the diagonal. Bars: the number of predictions in each bin, printed for the first "
    "line. Bins of fewer than ten are hollow, and not joined. Pooled ECE: over all predictions together. The tables "
    "have the clients' mean, which is larger: errors of single clients do not cancel, and small clients have few "
    "predictions.",
    position=1, source="run", needs=_diagram, order=4,
)  # fmt: skip
def reliability(
    bins: np.ndarray, ax: Any = None, averaged: np.ndarray | None = None, tempered: np.ndarray | None = None
) -> Any:
    """Accuracy against confidence, pooled over clients.

    Args:
        bins: (J, 15, 3) or (15, 3): how many, sum of confidences, how many right (:mod:`hierfl.metrics`).
        ax: where to draw.
        averaged: the same for predictions averaged over draws, where there are any.
        tempered: the same at the temperature that a calibrated fit predicts with, where there is one.
    """
    ax = axis_for(ax)
    ax.plot([0, 1], [0, 1], color=QUIET, lw=1, ls="--", label="calibrated")
    own = "posterior mean" if averaged is not None else "without temperature" if tempered is not None else ""
    lines = (
        (bins, PERSONAL, own or "personal models"),
        (averaged, GLOBAL, "averaged draws"),
        (tempered, COLOURS[2], "as predicted, with temperature"),
    )
    shown = [(np.asarray(b), colour, what) for b, colour, what in lines if b is not None]
    counts = list[np.ndarray]()
    for those, colour, what in shown:
        count, confidence, right = those.reshape(-1, those.shape[-2], 3).sum(0).T
        full, many = count > 0, count >= MIN_BIN
        ax.plot(confidence[many] / count[many], right[many] / count[many], color=colour, lw=1.2, zorder=2,
                label=f"{what}, {_errors(those)}")  # fmt: skip
        x, y = confidence[full] / count[full], right[full] / count[full]
        face = [colour if enough else "white" for enough in many[full]]
        ax.scatter(x, y, s=22, color=face, alpha=0.8, edgecolor=colour, linewidth=0.8, zorder=3)
        counts.append(count)
    _bars(ax, counts, [colour for _, colour, _ in shown])
    _unit_square(ax)
    ax.set_title("Reliability of personal models, pooled")
    legend_below(ax)
    return ax


def _errors(bins: np.ndarray) -> str:
    """Expected calibration errors of counts (..., 15, 3) in words: of all predictions pooled, and the clients' mean."""
    count, confidence, right = bins.reshape(-1, bins.shape[-2], 3).sum(0).T
    pooled = f"pooled ECE {np.abs(confidence - right).sum() / count.sum():.3f}"
    return pooled if len(bins) == 1 or bins.ndim < 3 else f"{pooled}, clients' mean {mean_error(bins):.3f}"


def mean_error(bins: np.ndarray) -> float:
    """Mean over clients of their expected calibration errors, as in a run's tables; bins (J, 15, 3)."""
    count, confidence, right = np.moveaxis(bins, -1, 0)
    tested = count.sum(1) > 0
    return float((np.abs(confidence - right).sum(1)[tested] / count.sum(1)[tested]).mean())


def _bars(ax: Any, counts: Sequence[np.ndarray], colours: Sequence[str]) -> None:
    """How many predictions each bin has: bars below the diagram, side by side, the first with its numbers."""
    width, most = 1 / len(counts[0]), max(count.max() for count in counts)
    for k, (count, colour) in enumerate(zip(counts, colours, strict=True)):
        at = (np.arange(len(count)) + (k + 0.5) / len(counts)) * width
        heights = STRIP * 0.6 * count / most
        ax.bar(at, heights, 0.9 * width / len(counts), -STRIP, color=colour, alpha=0.5, lw=0)
    for k, number in enumerate(counts[0]):
        if number:
            middle, height = (k + 0.5 / len(counts)) * width, STRIP * (0.62 * number / most - 1)
            colour = INK if len(counts) == 1 else colours[0]
            ax.text(middle, height, compact(number), ha="center", va="bottom", fontsize=5.5, color=colour)


def compact(number: float) -> str:
    """A count in at most four letters: 950, 1.2k, 35k, 2.5M."""
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * unit:
            return f"{number / unit:.0f}{letter}" if number >= 9.95 * unit else f"{number / unit:.1f}{letter}"
    return f"{number:.0f}"


def _unit_square(ax: Any) -> None:
    """Confidence and accuracy from 0 to 1, above the strip of counts."""
    from matplotlib.ticker import PercentFormatter

    ax.axhline(0, color=QUIET, lw=0.8)
    ax.set(xlim=(0, 1.03), ylim=(-STRIP, 1.03), xlabel="confidence, and predictions in each bin", ylabel="accuracy")
    ax.set_yticks(np.linspace(0, 1, 6))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0))
    grow(ax, height=0.5)


def worst_calibrated(bins: np.ndarray) -> int | None:
    """The client with the largest ECE, of those with at least MIN_TEST_EXAMPLES test examples; None if no client has.

    Args:
        bins: (J, 15, 3), as for :func:`reliability`.
    """
    count, confidence, right = np.moveaxis(np.asarray(bins, float), -1, 0)
    errors = np.abs(confidence - right).sum(1) / np.maximum(count.sum(1), 1)
    errors[count.sum(1) < MIN_TEST_EXAMPLES] = -1
    return int(errors.argmax()) if errors.max() >= 0 else None


@figure(
    "reliability-clients", "Calibration",
    "A line for each client, and one for all predictions together. Of clients with 20 test examples and more the one "
    "with the largest ECE is named.",
    position=1, source="run", needs=_diagram_of_clients, order=5,
)  # fmt: skip
def client_reliability(bins: np.ndarray, ax: Any = None, names: Sequence[str] = ()) -> Any:
    """Accuracy against confidence, a line for every client (how they are spread, of many), and all of them together.

    Args:
        bins: (J, 15, 3), as for :func:`reliability`.
        ax: where to draw.
        names: of the clients; few of them have colours of their own.
    """
    few = 0 < len(names) <= len(COLOURS)
    ax = axis_for(ax)
    ax.plot([0, 1], [0, 1], color=QUIET, lw=1, ls="--", label="calibrated")
    singly = np.asarray(bins)
    if len(singly) > MAX_NAMED_CLIENTS:
        _spread_of_clients(singly, ax)
        singly = singly[:0]
    for k, (count, confidence, right) in enumerate(np.moveaxis(singly, -1, 1)):
        full = count >= MIN_CLIENT_BIN  # fewer say nothing
        label = short_names(names)[k] if few else "a client (bins of five and more)" if k == 0 else None
        how = {"color": COLOURS[k], "lw": 1.2} if few else {"color": PERSONAL, "lw": 0.7, "alpha": 0.3}
        # A client that is always as sure fills one bin: a point where no line can be.
        mark = "o" if full.sum() == 1 else None
        ax.plot(confidence[full] / count[full], right[full] / count[full], label=label, marker=mark, ms=3, **how)
    if not few and (worst := worst_calibrated(bins)) is not None:
        count, confidence, right = np.moveaxis(np.asarray(bins)[worst], -1, 0)
        full, error = count >= min(MIN_CLIENT_BIN, count.max()), np.abs(confidence - right).sum() / count.sum()
        name = short_names([names[worst] if len(names) else worst])[0]
        ax.plot(confidence[full] / count[full], right[full] / count[full], color=INK, lw=1.4, marker="o", ms=3,
                label=f"worst: client {name}, its ECE {error:.2f}")  # fmt: skip
    count, confidence, right = np.asarray(bins).sum(0).T
    full = count >= min(MIN_BIN, count.max())
    pooled = {"color": INK, "lw": 1.8, "alpha": 0.5} if few else {"color": GLOBAL, "lw": 1.8}
    ax.plot(confidence[full] / count[full], right[full] / count[full], label="pooled", **pooled)
    _bars(ax, [count], [QUIET])
    _unit_square(ax)
    ax.set_title("Reliability of each client")
    legend_below(ax)
    return ax


def _spread_of_clients(bins: np.ndarray, ax: Any) -> None:
    """The range of four fifths of the clients, bin by bin; a bin of fewer than five examples is left out."""
    spans = []
    for count, confidence, right in np.moveaxis(bins, -1, 0).transpose(2, 0, 1):
        counted = count >= MIN_CLIENT_BIN
        if counted.any():
            low, high = np.quantile(right[counted] / count[counted], [0.1, 0.9])
            spans.append(((confidence[counted] / count[counted]).mean(), low, high))
    if spans:
        where, low, high = np.array(spans).T
        label = "80 % of the clients (bins of five and more)"
        ax.fill_between(where, low, high, color=PERSONAL, alpha=0.25, linewidth=0, label=label)
        ax.plot(where, low, where, high, color=PERSONAL, lw=0.7, alpha=0.6)
