"""Reliability diagrams: accuracy against confidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..metrics.registry import MIN_TEST_EXAMPLES
from .registry import Drawing, figure
from .style import COLOURS, GLOBAL, INK, MAX_SINGLE_CLIENTS, PERSONAL, QUIET, axis_for, percent_axis
from .tables import RunTables


def _diagram(run: RunTables) -> Iterator[Drawing]:
    if run.bins is not None and run.bins.sum() > 0:
        yield "reliability", {"bins": run.bins, "averaged": run.averaged}


def _diagram_of_clients(run: RunTables) -> Iterator[Drawing]:
    if run.bins is not None and run.bins.sum() > 0:
        yield "reliability-clients", {"bins": run.bins, "names": list(run.clients["client"])}


@figure(
    "reliability", "Calibration",
    "Right as often as it says: on the diagonal. The larger a point, the more predictions.",
    place=1, source="run", needs=_diagram, order=4,
)  # fmt: skip
def reliability(bins: np.ndarray, ax: Any = None, averaged: np.ndarray | None = None) -> Any:
    """Accuracy against confidence, pooled over clients.

    Args:
        bins: (J, 15, 3) or (15, 3): how many, sum of confidences, how many right (:mod:`hierfl.metrics`).
        ax: where to draw.
        averaged: the same for predictions averaged over draws, where there are any.
    """
    ax = axis_for(ax)
    ax.plot([0, 1], [0, 1], color=QUIET, lw=1, ls="--", label="calibrated")
    for those, colour in ((bins, PERSONAL), (averaged, GLOBAL)):
        if those is None:
            continue
        count, confidence, right = np.asarray(those).reshape(-1, those.shape[-2], 3).sum(0).T
        full = count > 0
        x, y = confidence[full] / count[full], right[full] / count[full]
        what = "personal models" if averaged is None else "posterior mean" if those is bins else "averaged draws"
        error = np.abs(confidence - right).sum() / count.sum()
        ax.plot(x, y, color=colour, lw=1.2, zorder=2, label=f"{what}, ECE {error:.3f}")
        sizes = 12 + 130 * count[full] / count.max()
        ax.scatter(x, y, s=sizes, color=colour, alpha=0.6, edgecolor="white", zorder=3)
    ax.set(xlim=(0, 1.05), ylim=(0, 1.05), xlabel="confidence", ylabel="accuracy")
    ax.set_title("Reliability of personal models, pooled")
    percent_axis(ax, "accuracy")
    percent_axis(ax, "accuracy", "x")
    ax.legend(loc="best")
    return ax


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
    "The worst is the one with the largest ECE, of those with 20 test examples and more.",
    place=1, source="run", needs=_diagram_of_clients, order=5,
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
    if len(singly) > MAX_SINGLE_CLIENTS:
        _spread_of_clients(singly, ax)
        singly = singly[:0]
    for k, (count, confidence, right) in enumerate(np.moveaxis(singly, -1, 1)):
        full = count >= 5  # (fewer say nothing)
        label = names[k] if few else "a client (bins of five and more)" if k == 0 else None
        how = {"color": COLOURS[k], "lw": 1.2} if few else {"color": PERSONAL, "lw": 0.7, "alpha": 0.3}
        # (a client that is always as sure fills one bin: a point where no line can be)
        mark = "o" if full.sum() == 1 else None
        ax.plot(confidence[full] / count[full], right[full] / count[full], label=label, marker=mark, ms=3, **how)
    if not few and (worst := worst_calibrated(bins)) is not None:
        count, confidence, right = np.moveaxis(np.asarray(bins)[worst], -1, 0)
        full, error = count >= min(5, count.max()), np.abs(confidence - right).sum() / count.sum()
        name = names[worst] if len(names) else worst
        ax.plot(confidence[full] / count[full], right[full] / count[full], color=INK, lw=1.4, marker="o", ms=3,
                label=f"worst: client {name}, ECE {error:.2f}")  # fmt: skip
    count, confidence, right = np.asarray(bins).sum(0).T
    full = count > 0
    pooled = {"color": INK, "lw": 1.8, "alpha": 0.5} if few else {"color": GLOBAL, "lw": 1.8}
    ax.plot(confidence[full] / count[full], right[full] / count[full], label="pooled", **pooled)
    ax.set(xlim=(0, 1.05), ylim=(0, 1.05), xlabel="confidence", ylabel="accuracy", title="Reliability of each client")
    percent_axis(ax, "accuracy")
    percent_axis(ax, "accuracy", "x")
    ax.legend(loc="best")
    return ax


def _spread_of_clients(bins: np.ndarray, ax: Any) -> None:
    """Where four fifths of the clients are, bin by bin; of fewer than five examples a bin says nothing."""
    spans = []
    for count, confidence, right in np.moveaxis(bins, -1, 0).transpose(2, 0, 1):
        told = count >= 5
        if told.any():
            low, high = np.quantile(right[told] / count[told], [0.1, 0.9])
            spans.append(((confidence[told] / count[told]).mean(), low, high))
    if spans:
        where, low, high = np.array(spans).T
        label = "80 % of the clients (bins of five and more)"
        ax.fill_between(where, low, high, color=PERSONAL, alpha=0.25, linewidth=0, label=label)
        ax.plot(where, low, where, high, color=PERSONAL, lw=0.7, alpha=0.6)
