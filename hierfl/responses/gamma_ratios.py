"""Ratios of gamma functions that keep their digits where their arguments are large."""

from __future__ import annotations

import torch
from torch import Tensor

#: from there on Stirling's series gives all digits
STIRLING_FROM = 16.0


def rising(y: Tensor, z: Tensor, derivative: int = 0) -> Tensor:
    """log Gamma(y + z) - log Gamma(z) - y log z, or a derivative in z of its first two terms.

    Differences of Stirling's series where z is large: those of the functions themselves have no digits left there
    (Abramowitz and Stegun, 6.1.41, 6.3.18, 6.4.12).

    Args:
        y: from 0.
        z: above 0.
        derivative: 0; 1 and 2 of log Gamma(y + z) - log Gamma(z).
    """
    y, z = torch.broadcast_tensors(y, z)
    far = z > STIRLING_FROM
    near_z, far_z = torch.where(far, STIRLING_FROM, z), torch.where(far, z, STIRLING_FROM)
    ratio, end = y / far_z, y + far_z
    if derivative == 0:
        near = torch.lgamma(y + near_z) - torch.lgamma(near_z) - y * near_z.log()
        series = (end - 0.5) * torch.log1p(ratio) - y + _stirling(end) - _stirling(far_z)
    elif derivative == 1:
        near = torch.digamma(y + near_z) - torch.digamma(near_z)
        series = torch.log1p(ratio) + 0.5 * y / (far_z * end) + _stirling_1(end) - _stirling_1(far_z)
    else:
        near = torch.polygamma(1, y + near_z) - torch.polygamma(1, near_z)
        square = far_z.square()
        # 1 / end - 1 / z + (1 / end^2 - 1 / z^2) / 2 + ...
        series = -y / (far_z * end) - 0.5 * y * (end + far_z) / (square * end.square())
        series = series + _stirling_2(end) - _stirling_2(far_z)
    return torch.where(far, series, near)


def _stirling(z: Tensor) -> Tensor:
    """What is left of log Gamma(z) beside (z - 1/2) log z - z + log(2 pi) / 2."""
    square = z.square().reciprocal()
    return (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (1 / 1680 - square / 1188)))) / z


def _stirling_1(z: Tensor) -> Tensor:
    """Its derivative."""
    square = z.square().reciprocal()
    return -square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132))))


def _stirling_2(z: Tensor) -> Tensor:
    """Its second derivative."""
    square = z.square().reciprocal()
    return square / z * (1 / 6 - square * (1 / 30 - square * (1 / 42 - square * (1 / 30 - square * 5 / 66))))
