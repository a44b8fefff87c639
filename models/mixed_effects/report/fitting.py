"""A fit of a mixed model to a table, until it is done."""

from __future__ import annotations

from typing import Any

import torch

from hierfl.data.federation import Federation
from hierfl.data.tables import ROUNDS
from hierfl.inference.options import Options
from hierfl.inference.run.fit import fit
from hierfl.inference.run.result import Run

from ..method import MixedEffects


def fitted(
    method: MixedEffects, federation: Federation, seed: int = 0, device: str = "cpu", rounds: int = ROUNDS
) -> Run:
    """With all clients in this process."""
    return fit(method, federation, rounds, progress=False, **_how(seed, device, rounds))


def options_of(method: MixedEffects, seed: int, device: str, rounds: int) -> Options:
    """How :func:`fitted` runs a fit."""
    return Options.of(method, rounds=rounds, **_how(seed, device, rounds))


def _how(seed: int, device: str, rounds: int) -> dict[str, Any]:
    every = max(1, rounds)
    return {
        "seed": seed, "device": device, "dtype": torch.float64, "splits": (), "evaluate_every": every, "chunk": 1000,
    }  # fmt: skip
