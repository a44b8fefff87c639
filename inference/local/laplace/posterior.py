"""Gaussian posteriors of some rows' heads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hierfl.rng import ClientNoise

from .forms import Curvature, Scaled
from .target import Expansion, Target


@dataclass(frozen=True)
class AtDraws:
    """A Gaussian posterior of some rows' heads at some draws of the shared values, all with one precision.

    Attributes:
        places: of these draws, (K,).
        target: the rows at them: the population's mean is one for each, (K, 1, 1, d).
        centre: means, (K, S, d) or (S, d).
        r, h, scaled: standard deviations of the prior, the curvature, and B of both.
    """

    places: Tensor
    target: Target
    centre: Tensor
    r: Tensor
    h: Curvature
    scaled: Scaled


@dataclass(frozen=True)
class Posterior:
    """q(w_j) of some rows: mean (S, d), what carries its covariance (M, S, d), and where its precision comes from."""

    mu: Tensor
    away: Tensor | None
    known: tuple[Expansion, Curvature, Scaled] | None = None

    @property
    def expansion(self) -> tuple[Expansion, Curvature, Scaled]:
        """Expansion and curvature of the last turn."""
        assert self.known is not None
        return self.known


def pairs(noise: ClientNoise, site: str, d: int, number: int) -> Tensor:
    """Standard normals (K, S, d) in pairs e, -e: first all of the first, then of the second; an odd one is zero."""
    odd = noise.keys.new_zeros((number % 2, len(noise.keys), d), dtype=noise.dtype)
    if number == 1:
        return odd
    e = noise.normal(f"{site}/laplace", None, torch.Size((d,))).squeeze(2)
    return torch.cat([e, odd, -e])
