"""A fit of a mixed model to a table, until it is done."""

from __future__ import annotations

import torch

from hierfl.data.federation import Federation
from hierfl.data.tables import ROUNDS
from hierfl.inference.run.fit import fit
from hierfl.inference.run.result import Run

from ..method import MixedEffects


def fitted(
    method: MixedEffects, federation: Federation, seed: int = 0, device: str = "cpu", rounds: int = ROUNDS
) -> Run:
    """With all clients in this process."""
    return fit(
        method, federation, rounds, seed=seed, device=device, progress=False, dtype=torch.float64, splits=(),
        evaluate_every=max(1, rounds), chunk=1000,
    )  # fmt: skip
