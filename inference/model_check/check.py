"""The check of a model of a user's own, before its first round."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from hierfl.data.federation import Federation
from hierfl.data.formula.design import Design

from ..local.svi import SVI
from ..method.base import Method
from ..server.exchange import Exchange
from ..state import State
from .as_rows import check_rows
from .comparisons import check_chunks, check_draws, check_padding, check_repeats, check_weights, warn_of_untrained
from .predicted import check_predictions, check_response
from .probe import Probe
from .random_numbers import no_random_numbers, random_numbers_kept
from .watched import check_sites, errors_as_one_line

log = logging.getLogger("hierfl")


def is_shipped(method: Method) -> bool:
    """Whether a method is one of hierfl's own, which the tests have asked."""
    return type(method).__module__.startswith("hierfl.models.")


def is_formula(method: Method) -> bool:
    """Whether a method of hierfl's own has a formula for a network: then nothing of its model is a user's code."""
    return is_shipped(method) and isinstance(method.network, Design)


def check_model(
    method: Method, federation: Federation, shared: State, personal: State, exchange: Exchange, rows: Sequence[str]
) -> None:
    """Refuses a model or guide that would be computed otherwise than it reads.

    Seven clients with three examples each, or fewer where there are fewer: each site and parameter is looked at, and
    then numbers are compared: padded and not, alone and together, in a minibatch, and as predictions. Nothing of the
    fit is changed, and no random number of it is used.

    Args:
        method: whose model and guide.
        federation: the clients that are here, one at least.
        shared: initial shared values, {name: (*shape)}.
        personal: one row, {name: (*shape)}.
        exchange: how shared values are moved.
        rows: shared values that clients train or differentiate by.

    Raises:
        UserError: one line, which names the site or parameter, and what to write.
    """
    steps = [*method.local(), *method.schedule().final_steps]
    values = {**shared, **personal}
    free = {k for step in steps for name in _by_gradients(step) for k in method.expand(name, values)}
    free |= {
        k for name, group in exchange.groups.items() if group.rule.sends_gradients for k in method.expand(name, values)
    }
    with random_numbers_kept(federation.device), errors_as_one_line(method):
        probe = Probe(method, federation, shared, personal, rows)
        with no_random_numbers(federation.device):
            check_sites(method, probe, free)
        together = probe.shake()
        plain = check_repeats(probe)
        check_draws(probe, plain)
        check_chunks(probe, together)
        check_padding(probe, plain, together)
        check_rows(method, probe, steps, exchange)
        check_weights(probe, plain, steps)
        check_response(method, probe)
        check_predictions(method, probe)
        warn_of_untrained(probe, free)
    _warn_of_constant(method, personal, steps)


def _warn_of_constant(method: Method, personal: State, steps: Sequence[Any]) -> None:
    """One warning of personal values that nothing moves: every client keeps the start."""
    moved = {k for step in steps for name in step.trains for k in method.expand(name, personal.keys() | {name})}
    if still := [name for name in personal if name not in moved and name not in method.replies]:
        shown = ", ".join(map(repr, still))
        log.warning("%s stays as it begins for all clients: no local step trains it", shown)


def _by_gradients(step: Any) -> Iterator[str]:
    """Values that steps of SVI move, inside others, too."""
    if isinstance(step, SVI):
        yield from step.trains
    for name in ("step", "descent"):
        if (inner := getattr(step, name, None)) is not None:
            yield from _by_gradients(inner)
