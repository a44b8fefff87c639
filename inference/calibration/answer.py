"""What some clients answer when a fit is calibrated: sums over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.metrics.calibration import CELLS, SET_METRICS, score_rows, set_rows, set_sums, tempered, tempering_rows
from hierfl.metrics.classification import classification_rows
from hierfl.metrics.pooling import MetricSums, client_sums

from ..evaluation.fitted import Fitted
from ..evaluation.personal import Measure, evaluate_personal
from .question import Question

Rows = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Answer:
    """Sums over clients.

    Attributes:
        sums: {group: {name: array}}; groups are kinds of prediction ("0", "1"), "scores" and "sets".
        clients: columns of clients.csv, {name: (J,)}, NaN without data; empty where there are none, or they stay there.
    """

    sums: dict[str, MetricSums]
    clients: dict[str, np.ndarray] = field(default_factory=dict)


def answer(fitted: Fitted, question: Question, chunk: int) -> Answer:
    """What the clients here answer.

    Args:
        fitted: the state.
        question: what is asked.
        chunk: clients at a time.
    """
    rows, sets = _rows(fitted, question, chunk)
    return _added(question, rows, sets, np.array(fitted.federation.sizes("validation")))


def answers(fitted: Fitted, question: Question, chunk: int) -> tuple[Answer, list[dict[str, MetricSums]]]:
    """The same, and each client's own sums. Arguments as of :func:`answer`."""
    rows, sets = _rows(fitted, question, chunk)
    sizes = np.array(fitted.federation.sizes("validation"))
    by_client = [
        _added(question, [_client_rows(own, j) for own in rows], sets and _client_rows(sets, j), sizes[j : j + 1]).sums
        for j in range(fitted.federation.clients)
    ]
    return _added(question, rows, sets, sizes), by_client


def _rows(fitted: Fitted, question: Question, chunk: int) -> tuple[list[dict[str, np.ndarray]], Rows | None]:
    """Each client's numbers, (J, ...): of each kind of prediction, and of sets."""
    measures = [_measure(question, power) for power in question.powers]
    rows = evaluate_personal(fitted, question.split, chunk, question.draws, measures)
    if question.threshold is None:
        return rows, None
    of_sets = [partial(_sets, threshold=question.threshold)]
    return rows, evaluate_personal(fitted, question.split, chunk, question.draws[-1:], of_sets)[0]


def _client_rows(rows: Rows, client: int) -> Rows:
    return {name: value[client : client + 1] for name, value in rows.items()}


def tempered_rows(fitted: Fitted, draws: int, power: float, chunk: int) -> Rows:
    """Each client's metrics on its test data at a temperature, (J, ...), as :func:`.classification_rows` has them.

    Args:
        fitted: the state.
        draws: that predictions are averaged over; 0 for the posterior mean.
        power: 1 / T.
        chunk: clients at a time.
    """
    return evaluate_personal(fitted, "test", chunk, (draws,), [partial(_metrics, power=power)])[0]


def no_answer(question: Question) -> dict[str, MetricSums]:
    """The sums of no client: those of any have this form."""
    no_rows = {"n": np.zeros(0)}
    sets = None if question.threshold is None else no_rows
    return _added(question, [no_rows for _ in question.draws], sets, np.zeros(0)).sums


def _measure(question: Question, power: float) -> Measure:
    if question.about == "temperature":
        return partial(_tempering, power=power)
    if question.about == "scores":
        return partial(_scores, low=question.low, high=question.high)
    return partial(_metrics, power=power)


def _added(question: Question, rows: Sequence[Rows], sets: Rows | None, validation: np.ndarray) -> Answer:
    if question.about == "temperature":
        return Answer({str(kind): {"terms": _total(own, "terms", 4)} for kind, own in enumerate(rows)})
    if question.about == "scores":
        return Answer({"scores": {"counts": _total(rows[0], "counts", CELLS + 2)}})
    sums = {str(kind): client_sums(own, "classification") for kind, own in enumerate(rows)}
    if sets is None:
        return Answer(sums)
    none = np.full(len(sets["n"]), np.nan)
    own = {"n_validation": validation, **{name: sets.get(name, none) for name in SET_METRICS}}
    return Answer({**sums, "sets": set_sums(sets, validation)}, own)


def _total(rows: Rows, name: str, width: int) -> np.ndarray:
    """Sums over clients, those without data left out: they have NaN."""
    return np.nansum(rows[name], 0) if name in rows else np.zeros(width)


def _log_probs(parts: Sequence[Sequence[Tensor]]) -> Tensor:
    """(S, n, C) of what was said of the pieces of a batch."""
    return torch.cat([piece[0] for piece in parts], -1).mT


def _tempering(parts: Sequence[Sequence[Tensor]], batch: Batch, *, power: float) -> dict[str, Tensor]:
    return tempering_rows(_log_probs(parts), batch.y, batch.mask, power)


def _scores(parts: Sequence[Sequence[Tensor]], batch: Batch, *, low: float, high: float) -> dict[str, Tensor]:
    return score_rows(_log_probs(parts), batch.y, batch.mask, low, high)


def _metrics(parts: Sequence[Sequence[Tensor]], batch: Batch, *, power: float) -> dict[str, Tensor]:
    return classification_rows(tempered(_log_probs(parts), power), batch.y, batch.mask)


def _sets(parts: Sequence[Sequence[Tensor]], batch: Batch, *, threshold: float) -> dict[str, Tensor]:
    return set_rows(_log_probs(parts), batch.y, batch.mask, threshold)
