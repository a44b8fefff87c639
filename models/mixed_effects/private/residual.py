"""The density of a residual sum of squares with noise: s^2 chi^2 + N(0, w), by its saddlepoint.

    K(z) = -nu/2 log(1 - 2 s^2 z) + w z^2 / 2                                                               (p6)
    log f(t)  ~  K(z) - z t - 1/2 log(2 pi K''(z)),    K'(z) = t

It is exact up to a constant for w = 0, and for a normal t.

Where noise outweighs the rows, t says as much of each s^2: its information is nu^2 / w, and without noise nu / (2 s^4).
A density that is flat in log s then draws intervals towards zero, and has no end there, since t excludes no small s.
Jeffreys' density is flat in log s without noise, and in s^2 where noise outweighs the rows:

    p(log s)  ~  s^2 (sum_j nu_j^2 / (2 nu_j s^4 + w_j))^(1/2)                                              (p12)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def log_density(t: Tensor, nu: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
    """About log f(t), (...).

    Args:
        t: the noisy sum of squares, any real number.
        nu: degrees of freedom, above 0.
        variance: s^2.
        noise: w, above 0.
    """
    # with y = 1 - 2 s^2 z the saddlepoint is the positive root of a y^2 - (a - t) y - nu s^2 = 0
    a = noise / (2 * variance)
    b = a - t
    root = (b.square() + 4 * a * nu * variance).sqrt()
    small = 2 * nu * variance / (root - b).clamp_min(torch.finfo(t.dtype).tiny)
    y = torch.where(b < 0, small, (b + root) / (2 * a))
    z = (1 - y) / (2 * variance)
    height = -nu / 2 * y.log() + noise * z.square() / 2 - z * t
    return height - 0.5 * (2 * math.pi * (2 * nu * variance.square() / y.square() + noise)).log()


def log_matching(nu: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
    """The logarithm of (p12), (...); zero without noise.

    Args:
        nu: degrees of freedom of each client, (..., J).
        variance: s^2, (..., 1).
        noise: w_j, (..., J).
    """
    degrees = 2 * (nu * variance).square() / (2 * nu * variance.square() + noise)
    return 0.5 * (degrees.sum(-1) / nu.sum(-1)).log()


def log_constant(t: Tensor, nu: Tensor) -> Tensor:
    """What :func:`log_density` without noise is more than -nu/2 log s^2 - t / (2 s^2); of t above 0."""
    return -nu / 2 * (nu / t).log() + nu / 2 - 0.5 * (4 * math.pi * t.square() / nu).log()
