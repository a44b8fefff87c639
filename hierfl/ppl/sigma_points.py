"""Sigma points: a guide's expectation by a few weighted points, where it could be drawn."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import UserError
from ..rng import ClientNoise


class SigmaPoints:
    """Not noise, but points whose mean is an expectation under N(0, I): exact for polynomials of degree three.

    2 d points, +- sqrt(d) along each axis, for a Gaussian guide's expectation of anything quadratic (Julier and
    Uhlmann, 1997, kappa = 0). For one latent only: two would need points of their joint space.

    Args:
        dtype: of the points.
        device: of the points.
    """

    particles = 0  # as many as the latent's dimensions say

    def __init__(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        self.dtype, self.device = dtype, torch.device(device)
        self._site: str | None = None

    def normal(self, site: str, width: int | None, event_shape: torch.Size) -> Tensor:
        """(2 d, 1, 1, *event)."""
        if width is not None or self._site not in (None, site):
            raise UserError("sigma points are for a guide with one latent, in the client plate")
        self._site, d = site, math.prod(event_shape)
        points = math.sqrt(d) * torch.eye(d, dtype=self.dtype, device=self.device)
        return torch.cat([points, -points]).view(-1, 1, 1, *event_shape)


#: what a guide's sites are drawn with
Noise = ClientNoise | SigmaPoints
