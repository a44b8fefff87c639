"""One evaluation: a row of metrics.csv from what an engine says of a split."""

from __future__ import annotations

from typing import Any

from hierfl.metrics.pooling import from_client_sums, from_example_sums, over_clients
from hierfl.metrics.registry import global_metrics, names_of

from ..engines.base import Scores
from .journal import Row


def metrics_row(scores: Scores, task: str) -> dict[str, Any]:
    """Metrics of one split under the names of metrics.csv; None for what there is not.

    Args:
        scores: of all clients, for each kind of prediction.
        task: "classification" or "regression".
    """
    row: Row = {}
    names = names_of(task)
    for k, kind in enumerate(("pm", "pm_draws")):
        metrics = _personal(scores, k, task) if k < len(scores.personal) else {}
        row |= {f"{kind}_{name}": metrics.get(name) for name in names}
    everyone = {} if scores.global_model is None else from_example_sums(scores.global_model, task)
    return row | {f"gm_{name}": everyone.get(name) for name in global_metrics(task)}


def _personal(scores: Scores, kind: int, task: str) -> dict[str, float]:
    """One number per metric: exact where every client's are known."""
    if scores.clients is not None and not scores.masked:
        return over_clients(scores.clients[kind], task)
    return from_client_sums(scores.personal[kind], task)
