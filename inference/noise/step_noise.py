"""Coins and noise of local steps and messages, for all rows of a plate: keyed in a simulation, secret at a site."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from hierfl import philox
from hierfl.rng import key

from .privacy import Privacy
from .sources import SystemNoise, system_words


class StepNoise(Protocol):
    """What private steps draw."""

    def coins(self, keys: Tensor, width: int, rate: float, *what: object) -> Tensor:
        """Independent coins that show True with this probability, (S, width).

        Args:
            keys: of the rows' clients, (S,).
            width: coins of a row.
            rate: probability.
            what: names the occasion; keyed coins depend on it.
        """
        ...

    def gaussian(self, keys: Tensor, entries: int, sd: float, step: float, *what: object) -> Tensor:
        """Gaussian noise on multiples of ``step``, (S, entries); float64 on the CPU. ``sd`` is at least ``step``."""
        ...


class KeyedSteps:
    """The steps' noise of a simulation: a function of the seed, so that a fit repeats and resumes. It protects no one.

    Args:
        seed: of the fit.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def coins(self, keys: Tensor, width: int, rate: float, *what: object) -> Tensor:
        """See :class:`StepNoise`."""
        stream = key("dp coins", self.seed, *what)
        words = philox.rows_of_words(keys.cpu(), stream, 0, -(-width // 4))
        return philox.unit(torch.stack(words, -1).flatten(1)[:, :width], torch.float64) < rate

    def gaussian(self, keys: Tensor, entries: int, sd: float, step: float, *what: object) -> Tensor:
        """See :class:`StepNoise`: rounded normals."""
        drawn = philox.normals(keys.cpu(), key("dp noise", self.seed, *what), 0, entries, torch.float64)
        return (drawn * (sd / step)).round_() * step


class SystemSteps:
    """The steps' noise of a site, from the operating system. It has no seed, never repeats, and leaves no state
    behind.
    """

    def coins(self, keys: Tensor, width: int, rate: float, *what: object) -> Tensor:
        """See :class:`StepNoise`; neither keys nor ``what`` change anything."""
        words = torch.from_numpy(system_words(len(keys) * width)).view(len(keys), width)
        return words < int(rate * 2.0**62) * 2 if rate < 1 else torch.ones_like(words, dtype=torch.bool)

    def gaussian(self, keys: Tensor, entries: int, sd: float, step: float, *what: object) -> Tensor:
        """See :class:`StepNoise`: exact discrete Gaussian noise."""
        return SystemNoise().integers((len(keys), entries), math.ceil(sd / step), *what).double() * step


def step_noise(privacy: Privacy) -> StepNoise:
    """Returns the noise of a fit: the operating system's at a real site."""
    return SystemSteps() if privacy.system else KeyedSteps(privacy.seed)
