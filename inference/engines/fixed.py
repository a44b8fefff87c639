"""What an engine adds up in fixed point: messages, scores and answers, with the bits that sites with masks give."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from hierfl.errors import UserError
from hierfl.metrics.pooling import MetricSums, client_sums, example_sums

from ..calibration.answer import Answer, answer, answers, no_answer
from ..calibration.question import Question
from ..evaluation.fitted import Fitted
from ..messages.fixed_point import FixedPoint
from ..options import Options
from ..state import State
from .base import Scores
from .masking import MIN_CLIENTS
from .remote.wire import flat_answer, flat_scores, nested

log = logging.getLogger("hierfl")
#: of a metric's name: how many clients' metric is no number, and how many clients' too large
ODD_SUFFIX = "/odd"
#: clients whose numbers become digits together
AT_ONCE = 256


def fits(numbers: Mapping[str, Tensor], clients: int) -> bool:
    """Whether all numbers are finite, and none is beyond what one of so many clients may add."""
    return all(FixedPoint.for_dtype(value.dtype).fits(value, clients) for value in numbers.values())


def encoded(numbers: Mapping[str, Tensor], clients: int) -> State:
    """Numbers that fit, as digits."""
    return {name: FixedPoint.for_dtype(value.dtype).encode(value, clients) for name, value in numbers.items()}


def decoded(digits: Mapping[str, Tensor], like: Mapping[str, Tensor], clients: int) -> State:
    """Sums of digits as numbers of the types of ``like``."""
    return {name: FixedPoint.for_dtype(value.dtype).decode(digits[name], clients) for name, value in like.items()}


def added(parts: Iterable[Mapping[str, Tensor]], nothing: Mapping[str, Tensor], clients: int) -> State:
    """Digits of the sum over clients of each one's metrics as :func:`marked` has them.

    Many clients' numbers are digits at once, and whole numbers add up the same in any order.

    Args:
        parts: each client's own metrics.
        nothing: those of no client, zeros.
        clients: J.
    """
    digits, of_clients = encoded(marked(nothing, clients), clients), iter(parts)
    while some := list(itertools.islice(of_clients, AT_ONCE)):
        for name in nothing:
            values = torch.stack([own[name] for own in some])
            if not FixedPoint.for_dtype(values.dtype).fits(values, clients):
                rows = [marked({name: value}, clients) for value in values]
                values = torch.stack([row[name] for row in rows])
                digits[f"{name}{ODD_SUFFIX}"] += torch.stack([row[f"{name}{ODD_SUFFIX}"] for row in rows]).sum(0)
            digits[name] += FixedPoint.for_dtype(values.dtype).encode(values, clients).sum(1)
    return digits


def marked(numbers: Mapping[str, Tensor], clients: int) -> State:
    """Metrics as they are added up: those that are no numbers, or too large, are zeros, and are counted beside.

    Args:
        numbers: one client's sums of metrics.
        clients: J.

    Returns:
        The numbers, and "NAME/odd" (2,) for each: 1 where one is no number, 1 where one is infinite or too large.
    """
    numbers_marked: State = {}
    for name, value in numbers.items():
        without_nan = value.masked_fill(value.isnan(), 0)  # an infinite one stays, and does not fit
        odd = [bool(value.isnan().any()), not FixedPoint.for_dtype(value.dtype).fits(without_nan, clients)]
        numbers_marked |= {
            name: torch.zeros_like(value) if any(odd) else value,
            f"{name}{ODD_SUFFIX}": torch.tensor(odd).long(),
        }
    return numbers_marked


def unmarked(sums: Mapping[str, Tensor]) -> State:
    """Sums of metrics as they would be without fixed point: no number, or infinite, where one client's is."""
    numbers: State = {}
    for name, value in sums.items():
        if not name.endswith(ODD_SUFFIX):
            nan, large = (bool(count) for count in sums[f"{name}{ODD_SUFFIX}"])
            numbers[name] = value + torch.nan if nan else value + torch.inf if large else value
    return numbers


def made_scores(rows: list[dict[str, np.ndarray]], everyone: MetricSums | None, task: str, options: Options) -> Scores:
    """Scores of clients that are here; with masks their sums are those that sites give.

    Args:
        rows: for each kind of prediction each client's metrics, {metric: (J, ...)}.
        everyone: sums over examples, of the global model.
        task: "classification" or "regression".
        options: of the fit.
    """
    if not options.masked:
        return Scores([client_sums(own, task) for own in rows], everyone, rows)
    clients = len(rows[0]["n"])

    def flat(kinds: Sequence[Mapping[str, np.ndarray]]) -> State:
        return flat_scores(Scores([client_sums(own, task) for own in kinds]))

    no_rows: list[Mapping[str, np.ndarray]] = [{"n": np.zeros(0)} for _ in rows]
    if 0 < np.count_nonzero(rows[0]["n"]) < MIN_CLIENTS:
        log.warning("no scores: fewer than %d clients have such examples, and masks need these", MIN_CLIENTS)
        none = None if everyone is None else example_sums([], task)
        return Scores([client_sums(own, task) for own in no_rows], none, rows, masked=True)
    nothing = flat(no_rows)
    of_clients = (flat([{k: v[j : j + 1] for k, v in own.items()} for own in rows]) for j in range(clients))
    digits = added(of_clients, nothing, clients)
    summed = nested(unmarked(decoded(digits, marked(nothing, clients), clients)))
    sums = [{k: v.numpy() for k, v in summed[str(kind)].items()} for kind in range(len(rows))]
    return Scores(sums, everyone, rows, masked=True)


def answer_of(fitted: Fitted, question: Question, chunk: int, options: Options) -> Answer:
    """What clients that are here answer to a question of a calibration; with masks their sums are those of sites.

    Args:
        fitted: the state.
        question: what is asked.
        chunk: clients at a time.
        options: of the fit.
    """
    if not options.masked:
        return answer(fitted, question, chunk)
    clients = fitted.federation.clients
    plain, digits, nothing = answer_digits(fitted, question, chunk, clients)
    return Answer(answer_sums(unmarked(decoded(digits, nothing, clients))), plain.clients)


def answer_digits(fitted: Fitted, question: Question, chunk: int, clients: int) -> tuple[Answer, State, State]:
    """The answer without masks, digits of its sums, and what no client answers; see :func:`answer_of`.

    Args:
        fitted, question, chunk: of the clients that are here.
        clients: J, of which these may be some.
    """
    plain, of_clients = answers(fitted, question, chunk)
    nothing = flat_answer(no_answer(question))
    digits = added(map(flat_answer, of_clients), nothing, clients)
    return plain, digits, marked(nothing, clients)


def answer_sums(numbers: Mapping[str, Tensor]) -> dict[str, MetricSums]:
    """Sums of a calibration as they are read."""
    return {group: {k: v.cpu().numpy() for k, v in sums.items()} for group, sums in nested(numbers).items()}


def refused_error(clients: int, kind: str) -> UserError:
    """What is said of a sum that counts with all clients' numbers alone, where some do not fit."""
    return UserError(
        f"{clients} client{'s' * (clients > 1)} cannot add to the sums ({kind}): their numbers are not finite, or "
        "beyond what masks carry; each site's own log says why"
    )


def say_left_out(clients: int, what: str) -> None:
    """Logs that some clients' part of a sum is missing; which ones is not known."""
    if clients:
        log.warning(
            "the %s of %d client%s are left out: not finite, or beyond what masks carry",
            what,
            clients,
            "s" * (clients > 1),
        )
