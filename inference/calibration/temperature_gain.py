"""What a temperature would be worth to a fit that has none: by validation data that it was not chosen on.

Clients with validation data are divided into two halves. Each half's temperature is the best of a grid by its own
examples, under the prior of :mod:`.search`, and is judged on the other half. Differences are paired, and vary over
clients: the standard error is that of a ratio of sums over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.metrics.calibration import tempering_rows

from ..engines.chunk_size import suitable_chunk
from ..evaluation.fitted import Fitted
from ..evaluation.personal import evaluate_personal
from .search import PRIOR

#: 1 / T of the grid: 1 is its middle
POWERS = np.exp(np.linspace(-1.5, 1.5, 61))
#: clients with validation data, from which on a standard error over clients says something
LEAST_CLIENTS = 6


@dataclass(frozen=True)
class TemperatureGain:
    """NLL of validation examples in nats, of predictions at the posterior mean.

    Attributes:
        temperatures: of the two halves, the lower first.
        before, after: NLL as it is, and at the temperature of the other half.
        error: standard error of the difference.
    """

    temperatures: tuple[float, float]
    before: float
    after: float
    error: float


@torch.no_grad()
def temperature_gain(fitted: Fitted, chunk: int = 0) -> TemperatureGain | None:
    """What a temperature would be worth; None where too few clients have validation data.

    Args:
        fitted: a classification, with the clients' data.
        chunk: clients at a time; 0 for what suits the device.
    """
    federation = fitted.federation
    if sum(n > 0 for n in federation.sizes("validation")) < LEAST_CLIENTS:
        return None
    numbers = sum(v[0].numel() for v in {**fitted.copies, **fitted.personal}.values())
    chunk = chunk or suitable_chunk(federation, numbers)
    rows = evaluate_personal(fitted, "validation", chunk, (0,), [_nll_of_powers])[0]
    return gain_of(rows["n"], rows["nll"])


def gain_of(n: np.ndarray, nll: np.ndarray) -> TemperatureGain | None:
    """The same from sums.

    Args:
        n: each client's validation examples, (J,).
        nll: sums of their negative log likelihoods at each of :data:`POWERS`, (J, 61).
    """
    counted = (n > 0) & np.isfinite(nll).all(1)
    if counted.sum() < LEAST_CLIENTS:
        return None
    n, nll = n[counted], nll[counted]
    order = np.argsort(-n, kind="stable")
    halves = np.zeros(len(n), int)
    halves[order] = np.arange(len(n)) % 2
    pull = PRIOR * (POWERS - 1 - np.log(POWERS))
    best = [int(np.argmin(nll[halves == half].sum(0) + pull)) for half in (0, 1)]
    before, after = nll[:, len(POWERS) // 2], nll[np.arange(len(n)), np.array(best)[1 - halves]]
    gain = (before - after).sum() / n.sum()
    left = (before - after) - gain * n
    error = np.sqrt(len(n) / (len(n) - 1) * np.square(left).sum()) / n.sum()
    low, high = sorted(float(1 / POWERS[k]) for k in best)
    return TemperatureGain((low, high), float(before.sum() / n.sum()), float(after.sum() / n.sum()), float(error))


def _nll_of_powers(parts: Sequence[Sequence[Tensor]], batch: Batch) -> dict[str, Tensor]:
    log_probs = torch.cat([piece[0] for piece in parts], -1).mT
    rows = partial(tempering_rows, log_probs, batch.y, batch.mask)
    by_power = [rows(power) for power in POWERS.tolist()]
    return {"n": by_power[0]["n"], "nll": torch.stack([own["terms"][:, 1] for own in by_power], -1)}
