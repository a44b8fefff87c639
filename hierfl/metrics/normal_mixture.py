"""E|X| of a normal, and E|X - X'| of two draws of a mixture of normals: what the CRPS is made of."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def absolute_moment(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """E|X| and P(X > 0) for X ~ N(mean, std^2)."""
    z = mean / std
    density, above = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi), torch.special.ndtr(z)
    return 2 * std * density + mean * (2 * above - 1), above


#: columns of a mixture's components that lie in a cache together
COLUMNS_AT_A_TIME = 1024
#: standard deviations beyond which a normal has no mass in double precision, and where exp(-x^2) has none
NORMAL_REACH, GAUSSIAN_REACH = 8.5, 6.1


def mean_difference(mean: Tensor, std: Tensor) -> Tensor:
    """E|X - X'| of two independent draws of an equal mixture of K normals, (*shape), from their (K, *shape).

    By pairs that is K^2 absolute moments. On a circle of circumference P, |d| is P/4 - 2P/pi^2 sum_k cos(w_k d)/k^2
    over odd k, with w_k = 2 pi k / P; and E cos(w (X - X')) = |E exp(i w X)|^2, which for normals falls as
    exp(-w^2 std^2). So where P is twice as long as any two draws are apart, a few terms of K numbers each give it to
    rounding. Pairs remain where the normals are so narrow beside their distances that many terms would be needed.
    """
    shape, draws = mean.shape[1:], len(mean)
    blocks = zip(
        mean.flatten(1).split(COLUMNS_AT_A_TIME, 1),
        std.expand_as(mean).flatten(1).split(COLUMNS_AT_A_TIME, 1),
        strict=True,
    )
    parts = []
    for m, s in blocks:
        least = m.amin(0)
        reach = m.amax(0) - least + NORMAL_REACH * math.sqrt(2) * s.amax(0)
        terms = (GAUSSIAN_REACH / (2 * math.pi) * reach / s.amin(0)).max() + 1
        # In nanoseconds: a pair takes some 25, a term 2, its beginning 60; what is not finite is no reason to wait.
        parts.append(_by_series(m - least, s, reach, int(terms)) if 60 + 2 * terms < 25 * draws else _by_pairs(m, s))
    return torch.cat(parts).view(shape) if parts else mean.new_zeros(shape)


def _by_series(m: Tensor, s: Tensor, reach: Tensor, terms: int) -> Tensor:
    """See :func:`mean_difference`: (K, n), (K, n), (n,) -> (n,)."""
    step = math.pi / reach  # w_1, for P = 2 reach
    turn = torch.polar(torch.ones_like(m), m * step)
    twice, total = turn * turn, torch.zeros_like(reach)
    alike = bool((s == s[0]).all())
    damping = -0.5 * ((s[:1] if alike else s) * step).square()
    for k in range(1, 2 * terms + 1, 2):
        damped = (k * k * damping).exp()
        centre = damped[0] * turn.mean(0) if alike else (damped * turn).mean(0)
        total = total + (centre.real.square() + centre.imag.square()) / k**2
        turn *= twice
    return reach / 2 - 4 / math.pi**2 * reach * total


def _by_pairs(m: Tensor, s: Tensor) -> Tensor:
    """See :func:`mean_difference`: (K, n), (K, n) -> (n,)."""
    total = absolute_moment(torch.zeros_like(m), math.sqrt(2) * s)[0].sum(0)
    for k in range(len(m) - 1):  # one row of them at a time
        distance, _ = absolute_moment(m[k + 1 :] - m[k], (s[k + 1 :].square() + s[k].square()).sqrt())
        total = total + 2 * distance.sum(0)
    return total / len(m) ** 2
