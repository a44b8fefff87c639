"""Sigma points: a guide's expectation by a few weighted points, where it could be drawn."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from ..errors import UserError
from ..rng import ClientNoise


class SigmaPoints:
    """Not noise, but points whose weighted mean is an expectation under N(0, I): exact for polynomials of a degree.

    Degree 3: 2 d points, +- sqrt(d) along each axis, of equal weight, for a Gaussian guide's expectation of anything
    quadratic (Julier and Uhlmann, 1997, kappa = 0). Degree 5: 2 d^2 + 1 points, also in the planes of two axes, for
    covariances of what is quadratic (McNamee and Stenger, Numerische Mathematik 1967). For one latent only: two would
    need points of their joint space.

    Args:
        dtype: of the points.
        device: of the points.
        degree: 3 or 5.
    """

    particles = 0  # as many as the latent's dimensions say

    def __init__(self, dtype: torch.dtype, device: torch.device | str = "cpu", degree: Literal[3, 5] = 3) -> None:
        self.dtype, self.device, self.degree = dtype, torch.device(device), degree
        self._site: str | None = None

    def normal(self, site: str, width: int | None, event_shape: torch.Size) -> Tensor:
        """(K, 1, 1, *event), K = 2 d or 2 d^2 + 1."""
        if width is not None or self._site not in (None, site):
            raise UserError("sigma points are for a guide with one latent, in the client plate")
        self._site, d = site, math.prod(event_shape)
        axes = torch.eye(d, dtype=self.dtype, device=self.device)
        points = math.sqrt(d if self.degree == 3 else d + 2) * axes
        found = [points, -points]
        if self.degree == 5:
            one, other = torch.triu_indices(d, d, 1, device=self.device)
            pairs = math.sqrt((d + 2) / 2) * torch.cat([axes[one] + axes[other], axes[one] - axes[other]])
            found = [torch.zeros_like(points[:1]), *found, pairs, -pairs]
        return torch.cat(found).view(-1, 1, 1, *event_shape)

    def weights(self, d: int) -> Tensor:
        """Of the points in d dimensions, (K,)."""
        if self.degree == 3:
            return torch.full((2 * d,), 1 / (2 * d), dtype=self.dtype, device=self.device)
        centre, axis, pair = 2 / (d + 2), (4 - d) / (2 * (d + 2) ** 2), 1 / (d + 2) ** 2
        each = (centre, 1), (axis, 2 * d), (pair, 2 * d * (d - 1))
        return torch.cat([torch.full((n,), w, dtype=self.dtype, device=self.device) for w, n in each])


#: what a guide's sites are drawn with
Noise = ClientNoise | SigmaPoints
