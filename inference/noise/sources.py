"""Sources of noise: the operating system at a site, a key in a simulation.

Noise lies on a grid whose step is a power of two, 2^-20 of its standard deviation or less, and what it is added to is
rounded to that grid first. So the bits of a released number say nothing that its value on the grid does not (Mironov,
CCS 2012). Of the operating system's noise no state is left behind: its random words are used once.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hierfl.errors import UserError
from hierfl.rng import normals

from .discrete_gaussian import discrete_gaussian

#: steps of the grid in a standard deviation are between this and twice this
STEPS = 2**20


class NoiseSource(Protocol):
    """Gives noise, a whole multiple of a grid's step."""

    def gaussian(self, shape: Sequence[int], sd: float, *what: object) -> Tensor:
        """Independent Gaussian noise on the grid of :func:`grid`, (*shape); float64 on the CPU.

        Args:
            shape: of the noise.
            sd: standard deviation, above 0.
            what: names the release, as ("statistics",) or ("steps", round, step); keyed noise depends on it.
        """
        ...

    def integers(self, shape: Sequence[int], sd: int, *what: object) -> Tensor:
        """Independent discrete Gaussian noise of a whole ``sd`` >= 1, (*shape); int64."""
        ...


class SystemNoise:
    """Noise of a site: discrete Gaussian, by random words of the operating system. It never repeats and has no seed."""

    def gaussian(self, shape: Sequence[int], sd: float, *what: object) -> Tensor:
        """See :class:`NoiseSource`; ``what`` changes nothing."""
        step = grid(sd)
        return self.integers(shape, math.ceil(sd / step)).double() * step

    def integers(self, shape: Sequence[int], sd: int, *what: object) -> Tensor:
        """See :class:`NoiseSource`."""
        return torch.from_numpy(discrete_gaussian(math.prod(shape), sd, system_words)).reshape(tuple(shape))


class KeyedNoise:
    """Noise of a simulation, a function of its key: a fit repeats and resumes. It protects no one.

    Args:
        key: as (seed, client's name).
    """

    def __init__(self, *key: object) -> None:
        self.key = key

    def gaussian(self, shape: Sequence[int], sd: float, *what: object) -> Tensor:
        """See :class:`NoiseSource`."""
        step = grid(sd)
        drawn = normals(torch.Size(shape), "dp", *self.key, *what, dtype=torch.float64)
        return (drawn * (sd / step)).round_() * step

    def integers(self, shape: Sequence[int], sd: int, *what: object) -> Tensor:
        """See :class:`NoiseSource`."""
        bits = np.random.Generator(np.random.Philox(key=_seed("dp integers", *self.key, *what)))

        def words(count: int) -> np.ndarray:
            return bits.integers(0, 2**63 - 1, count, np.int64, endpoint=True)

        return torch.from_numpy(discrete_gaussian(math.prod(shape), sd, words)).reshape(tuple(shape))


def noisy(value: Tensor, sensitivity: float, multiplier: float, source: NoiseSource, *what: object) -> Tensor:
    """A value with noise, in its own dtype.

    Args:
        value: what is released, any shape; finite.
        sensitivity: largest L2 norm by which it changes when one unit is added or removed, over all entries; above 0.
        multiplier: of the plan.
        source: of the noise.
        what: names the release.

    Returns:
        The value on the grid plus noise; its standard deviation is multiplier * sensitivity, and a millionth more
        per square root of the number of entries for the rounding to the grid.
    """
    sd = noise_sd(value.numel(), sensitivity, multiplier)
    step = grid(sd)
    rounded = (value.detach().double().cpu() / step).round_() * step
    return (rounded + source.gaussian(tuple(value.shape), sd, *what)).to(value.device, value.dtype)


def noise_sd(entries: int, sensitivity: float, multiplier: float) -> float:
    """Standard deviation of the noise of :func:`noisy`: rounding to the grid adds to the sensitivity.

    Raises:
        UserError: for noise so large, of so many numbers, that rounding to its grid would hide them.
    """
    # Two neighbours' entries move apart by a step at most; a step is at most sd / STEPS.
    share = math.sqrt(entries) * multiplier / STEPS
    if share >= 0.5:
        raise UserError(
            f"noise of {multiplier:.3g} times the sensitivity on each of {entries} numbers leaves nothing of them: "
            "say a larger epsilon, fewer rounds or steps, or a smaller model"
        )
    return multiplier * sensitivity / (1 - share)


def grid(sd: float) -> float:
    """The step of the grid of noise with this standard deviation: the power of two between sd/2^21 and sd/2^20."""
    if not (math.isfinite(sd) and sd > 0):
        raise ValueError(f"noise has a standard deviation above 0, not {sd}")
    return math.ldexp(1.0, math.floor(math.log2(sd)) - 20)


def system_words(count: int) -> np.ndarray:
    """So many uniform words in [0, 2^63) of the operating system, int64."""
    return np.frombuffer(os.urandom(8 * count), np.int64) & np.int64(2**63 - 1)


def _seed(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:16], "little")
