"""Points over which a head's likelihood is averaged: few of each example's predictor, many together."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from scipy.stats import chi2
from torch import Tensor

from hierfl.rng import ClientNoise, normals

from ...clients.chunk import ClientChunk

#: sets of points; example i has the one of number i modulo this
SETS = 64
#: deviations of a head that carry its covariance from round to round, where it has more numbers than EXACT
DEVIATIONS = 64
#: heads of so many numbers at most have their covariance carried exactly, by two deviations for each number
EXACT = 50


@lru_cache
def predictor_points(outputs: int, number: int) -> Tensor:
    """Points (SETS, K, outputs) that represent a standard normal, K >= number; float64.

    Each set is made of crosses: both ends of orthogonal axes, turned at random, so that its mean is 0 and its
    covariance I. Crosses of several sizes have a normal's radii. Examples of different sets have independent points:
    over many examples a likelihood is averaged over many more than K, and a head cannot learn where they are.
    """
    crosses = max(1, math.ceil(number / (2 * outputs)))
    size = torch.Size((SETS * crosses, outputs, outputs))
    axes = torch.linalg.qr(normals(size, 0, "predictor points", dtype=torch.float64)).Q
    radius = torch.tensor(chi2.ppf([(k + 0.5) / crosses for k in range(crosses)], outputs), dtype=torch.float64)
    radius = (radius * outputs / radius.mean()).sqrt()
    half = (axes.view(SETS, crosses, outputs, outputs) * radius[:, None, None]).flatten(1, 2)
    return torch.cat([half, -half], 1)


def deviations(d: int) -> int:
    """How many deviations carry the covariance of a head of d numbers."""
    return 2 * d if d <= EXACT else DEVIATIONS


def client_deviations(chunk: ClientChunk, site: str, like: Tensor) -> Tensor:
    """Standard normals (M, S, d) of clients (S, d); of small heads with exactly a standard normal's covariance."""
    d = like.shape[-1]
    noise = ClientNoise(chunk.keys.to(chunk.n.device), (chunk.seed, "deviations"), _made(d), dtype=like.dtype)
    e = noise.normal(site, None, torch.Size((d,))).squeeze(2)
    return _exact(e.transpose(0, 1), 1).transpose(0, 1) if d <= EXACT else e


def population_deviations(like: Tensor) -> Tensor:
    """Others (M, d), the same for all clients (..., d), orthogonal to theirs where a head is small."""
    d = like.shape[-1]
    e = normals(torch.Size((_made(d), d)), 0, "population deviations", dtype=like.dtype, device=like.device)
    return _exact(e, -1) if d <= EXACT else e


def _made(d: int) -> int:
    return d if d <= EXACT else DEVIATIONS


def _exact(e: Tensor, sign: int) -> Tensor:
    """2 d points of covariance I from (..., d, d) numbers; the second half has the given sign."""
    half = torch.linalg.qr(e).Q * math.sqrt(e.shape[-1])
    return torch.cat([half, sign * half], -2)
