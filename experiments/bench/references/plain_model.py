"""The log joint of the benchmark's plain model, written by hand for all draws and clients at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

HALF_LOG = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class HandWritten:
    """Counts y_ji of S clients with intercepts and slopes of their own, all rows of a client on one plate.

    Attributes:
        x, y: (S, n).
        mask: (S, n), or None where no row is padding.
        centring: c of both latents, (S, 2).
        simplified: whether log exp(eta) is known to be eta, which the model's text does not say.
    """

    x: Tensor
    y: Tensor
    mask: Tensor | None
    centring: Tensor
    simplified: bool = False

    def __call__(self, z: Tensor, v: Tensor) -> Tensor:
        """h_j at draws of the globals z (K, S, 4), means before log scales, and of the latents v (K, S, 2): (K, S)."""
        loc, log_scale, c = z[..., :2], z[..., 2:], self.centring
        grown = (1 - c) * log_scale
        u = loc + grown.exp() * (v - c * loc)
        eta = u[..., :1] + u[..., 1:] * self.x
        rate = eta.exp()
        log_rate = self.y * eta if self.simplified else torch.xlogy(self.y, rate)
        rows = log_rate - rate - torch.lgamma(self.y + 1)
        rows = rows if self.mask is None else torch.where(self.mask, rows, 0.0)
        prior = -0.5 * ((u - loc) / log_scale.exp()).square() - log_scale - HALF_LOG + grown
        return rows.sum(-1) + prior.sum(-1)
