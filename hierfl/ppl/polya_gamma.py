"""Polya-Gamma variables: logistic likelihoods that are Gaussian given them.

Polson, Scott and Windle (JASA 2013, Theorem 1): with omega ~ PG(1, 0) and y = +-1,

    sigma(y f) = E exp(y f / 2 - omega f^2 / 2) / 2,        omega | f ~ PG(1, f).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: terms of the sum that are drawn; the rest is Gaussian with its mean and variance
TERMS = 8
#: standard normals that a draw is made of
NORMALS = TERMS + 1


def polya_gamma_mean(c: Tensor) -> Tensor:
    """E omega = tanh(c / 2) / (2 c) of omega ~ PG(1, c), 1/4 at c = 0."""
    small = c.abs() < 1e-2
    safe = torch.where(small, 1.0, c)
    return torch.where(small, 0.25 - c.square() / 48, (safe / 2).tanh() / (2 * safe))


def polya_gamma(c: Tensor, normals: Tensor) -> Tensor:
    """Draws of PG(1, c), as a function of standard normals.

    PG(1, c) is the sum over k = 1, 2, ... of E_k / (2 pi^2 ((k - 1/2)^2 + c^2 / (4 pi^2))), E_k exponential (Eq. 2).
    The first :data:`TERMS` are drawn. What is left is many small terms: a Gaussian with the exact mean, and a variance
    that is a hundred-thousandth of all (to a few per cent of itself where |c| < 30).

    Args:
        c: (...).
        normals: (..., NORMALS).
    """
    square = (c / (2 * math.pi)).square()
    k = torch.arange(1, NORMALS, dtype=c.dtype, device=c.device)
    weight = 1 / (2 * math.pi**2 * ((k - 0.5).square() + square[..., None]))  # (..., TERMS)
    drawn = (weight * -torch.special.log_ndtr(normals[..., :TERMS])).sum(-1)
    rest = (polya_gamma_mean(c) - weight.sum(-1)).clamp_min(0)
    # sum_{k > T} 1 / ((k - 1/2)^2 + a)^2 = int_T^inf dx / (x^2 + a)^2, nearly, to first order in a
    variance = 1 / (12 * math.pi**4 * TERMS * (TERMS**2 + 1.2 * square))
    return drawn + (rest + variance.sqrt() * normals[..., TERMS]).clamp_min(0)
