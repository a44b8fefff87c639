"""What must not change what a model says of a client: who is beside it, padding, the cut into minibatches."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch

from hierfl.errors import UserError
from hierfl.nn.layers.batch_norm import is_statistic

from ..local.base import LocalStep
from .probe import ROWS, Probe, SiteNumber, first_difference

log = logging.getLogger("hierfl")


def check_repeats(probe: Probe) -> list[SiteNumber]:
    """Refuses a model that says something else when it is run again; what it says of the first row without padding."""
    batch = probe.row(0, probe.counts[0])
    plain = probe.numbers(batch, [0])
    if label := first_difference(plain, probe.numbers(batch, [0])):
        raise UserError(
            f"{label} changes when the same client is computed again: random numbers, a counter or a cache of the "
            "method's own; draw in a sample site of the guide, and keep what changes in shared() or personal()"
        )
    return plain


def warn_of_untrained(probe: Probe, free: Collection[str]) -> None:
    """Warns of values that are to be trained by gradients, and have none: they stay as they are.

    Args:
        probe: what it is run on.
        free: values that gradient steps move.
    """
    own = {k: v for k, v in probe.values_of([0]).items() if k in free and not is_statistic(k)}
    leaves = {k: v.detach().requires_grad_() for k, v in own.items()}
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of float(param(...))
        numbers = probe.numbers(probe.row(0, probe.counts[0]), [0], leaves=leaves)
        total = sum((number.value.sum() for number in numbers), torch.zeros((), requires_grad=True))
    slopes = torch.autograd.grad(total, list(leaves.values()), allow_unused=True) if leaves else ()
    if still := [name for name, slope in zip(leaves, slopes, strict=True) if slope is None]:
        log.warning(
            "%s stays as it is: it is to be trained, but no gradient reaches it; neither model nor guide asks for it, "
            "or they take it by .detach(), float(), .item() or torch.no_grad()", ", ".join(map(repr, still[:5])),
        )  # fmt: skip


def check_draws(probe: Probe, plain: Sequence[SiteNumber]) -> None:
    """Refuses a model in which a draw's numbers change with how many others are computed with it.

    Args:
        probe: what it is run on.
        plain: what it says of the first row without padding.
    """
    single = [number.first_draw() for number in probe.numbers(probe.row(0, probe.counts[0]), [0], single=True)]
    if label := first_difference([number.first_draw() for number in plain], single):
        raise UserError(
            f"{label} changes with the number of draws: the model uses a sum or mean over them, or counts dimensions "
            "from the left; count from the right: examples are -1, clients -2 and draws -3, before a site's own"
        )


def check_chunks(probe: Probe, together: Sequence[SiteNumber]) -> None:
    """Refuses a model in which a client's numbers change with how many others are computed with it.

    Args:
        probe: what it is run on.
        together: what it says of all rows.
    """
    for row in (0, ROWS - 2):
        alone = probe.numbers(probe.row(row), [row])
        if label := first_difference([number.row(row) for number in together], alone):
            raise UserError(
                f"{label} mixes clients: it changes when a client is computed alone, not with {ROWS - 1} others; "
                "the model or guide uses len(batch.x), batch.num_clients or a sum over clients; use a client's own "
                "data and values, batch.n, and a setting for the number of all clients"
            )


def check_padding(probe: Probe, plain: Sequence[SiteNumber], together: Sequence[SiteNumber]) -> None:
    """Refuses a model in which padding counts.

    Args:
        probe, plain: as for :func:`check_draws`.
        together: what it says of all rows, with padding.
    """
    examples, padded = probe.counts[0], [number.row(0) for number in together]
    for padded_number, two in zip(padded, plain, strict=True):
        if not padded_number.first(examples).agrees(two):
            raise UserError(
                f"{padded_number.label} changes when a client's {examples} examples are padded to {probe.batch.width}: "
                "the model "
                "or guide uses batch.width, batch.x.shape[1], or a sum or mean over examples without batch.mask; write "
                "'with data(batch):' around what belongs to examples, and take batch.n for their number"
            )


def check_weights(probe: Probe, plain: Sequence[SiteNumber], steps: Sequence[LocalStep]) -> None:
    """Refuses a model that ignores the weight of a minibatch.

    A term of examples outside the data plate has no weight. It may be made of means (which need none), but not a sum.

    Args:
        probe, plain: as for :func:`check_draws`.
        steps: of the method: without minibatches there are no weights.
    """
    examples = probe.counts[0]
    once = probe.row(0, examples)
    weight = once.n.new_full((1, 1), 2.0)
    for plain_number, two in zip(plain, probe.numbers(replace(once, scale=weight), [0]), strict=True):
        if (
            plain_number.per_example
            and plain_number.observed
            and not replace(plain_number, value=2 * plain_number.value).agrees(two)
        ):
            raise UserError(
                f"{plain_number.label} does not count twice in a minibatch of half the examples: its plate must be "
                "'with data(batch):'"
            )
    if not any(in_minibatches(step) for step in steps):
        return
    twice = replace(once, x=once.x.repeat_interleave(2, 1), y=once.y.repeat_interleave(2, 1), scale=weight / 4)
    for plain_number, two in zip(plain, probe.numbers(twice, [0]), strict=True):
        summed = (
            plain_number.observed
            and plain_number.per_client
            and not plain_number.per_example
            and float(plain_number.value.abs().max()) > 1e-6
        )
        if summed and replace(plain_number, value=2 * plain_number.value).agrees(two):
            raise UserError(
                f"{plain_number.label} is a sum over examples outside the data plate, where it counts too little in a "
                "minibatch: move it into 'with data(batch):', or multiply it by batch.scale where that is not None"
            )


def in_minibatches(step: Any) -> bool:
    """Whether a local step, or one inside it, is known to take some of a client's examples at a time."""
    inner = [getattr(step, name, None) for name in ("step", "descent")]
    return getattr(step, "batch", None) is not None or any(in_minibatches(part) for part in inner if part is not None)
