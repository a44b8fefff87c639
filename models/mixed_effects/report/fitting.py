"""A fit of a mixed model to a table, until it is done."""

from __future__ import annotations

import logging
import math
from typing import Any

import torch

from hierfl.data.federation import Federation
from hierfl.data.tables import ROUNDS
from hierfl.inference.options import Options
from hierfl.inference.run.fit import fit
from hierfl.inference.run.result import Run

from ..method import MixedEffects
from ..search.requests import most_points

log = logging.getLogger("hierfl")
#: clients at a time; and numbers of their messages, where a factor crosses them
CLIENTS, NUMBERS = 1000, 20_000_000


def fitted(
    method: MixedEffects, federation: Federation, seed: int = 0, device: str = "cpu", rounds: int = ROUNDS
) -> Run:
    """Fits a method with all clients in this process."""
    return fit(method, federation, rounds, progress=False, **_how(method, seed, device, rounds))


def fitted_quietly(method: MixedEffects, federation: Federation) -> Run:
    """The same, of which nothing is logged: of simulated clients, or of some of which it has been said."""
    disabled, log.disabled = log.disabled, True
    try:
        return fitted(method, federation)
    finally:
        log.disabled = disabled


def options_of(method: MixedEffects, seed: int, device: str, rounds: int) -> Options:
    """How :func:`fitted` runs a fit."""
    return Options.for_method(method, rounds=rounds, **_how(method, seed, device, rounds))


def _how(method: MixedEffects, seed: int, device: str, rounds: int) -> dict[str, Any]:
    every = max(1, rounds)
    return {
        "seed": seed, "device": device, "dtype": torch.float64, "splits": (), "evaluate_every": every,
        "chunk": _clients_at_a_time(method),
    }  # fmt: skip


def _clients_at_a_time(method: MixedEffects) -> int:
    """The number of clients whose messages fit into memory."""
    if not any(level.crossed for level in method.above):
        return CLIENTS
    numbers_each = sum(math.prod(shape) for shape in method.likelihood.form(most_points(method)).values())
    return max(1, min(CLIENTS, NUMBERS // numbers_each))
