"""Steps of a random walk, by which draws of clients' latents reach where no proposal of the guide goes.

    v' = v + s L_i n,      n ~ N(0, 1),   L_i a column of the root of the guide's covariance, s in turn of SCALES

Each step is taken with probability min(1, p(v' | x, y_j) / p(v | x, y_j)), so that it keeps the posterior
(Metropolis et al., 1953). The guide's spread is the same at all globals: where a posterior is wider or skewed, draws
walk on from the last proposal.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hierfl.inference.clients.chunk import ClientChunk

from .spread import uniforms
from .steps import AtSites

#: s above: with each, standard deviations of the guide's conditional
SCALES = (10.0, 3.0, 1.0, 5.0)
#: steps for as many proposals, at least and at most
MIN_STEPS, MAX_STEPS = 8, 32


def walked(at: AtSites, chunk: ClientChunk, x: Tensor, v: Tensor, steps: int, first: int, purpose: str) -> Tensor:
    """Latents (M, S, q) after some steps from ``v`` at points of the globals.

    Args:
        at: the clients and their guide.
        chunk: the same clients.
        x: points of the globals, unconstrained, (M, p).
        v: where the walk begins, (M, S, q).
        steps: how many, bounded by :data:`MIN_STEPS` and :data:`MAX_STEPS`.
        first: number of the first of these points, by which steps are keyed.
        purpose: likewise.
    """
    many, count, _ = v.shape
    free = at.guide.spread.nonzero().squeeze(-1)  # points stay
    if not len(free):
        return v
    points = x[:, None].expand(-1, count, -1)
    height = _height(at, points, v)
    for step in range(min(MAX_STEPS, max(MIN_STEPS, steps))):
        u = uniforms(chunk, (first * 3, many * 3), purpose, "walk", str(step)).unflatten(0, (many, 3))
        axis = free[(u[:, 0] * len(free)).long().clamp_(max=len(free) - 1)]
        far = SCALES[step % len(SCALES)] * torch.special.ndtri(u[:, 1].clamp(1e-12, 1 - 1e-12))
        column = at.guide.root.mT[torch.arange(count, device=v.device), axis]
        tried = v + far[..., None] * column
        height_tried = _height(at, points, tried)
        taken = (height_tried - height.clamp_min(-1e300)) > u[:, 2].log()
        v, height = torch.where(taken[..., None], tried, v), torch.where(taken, height_tried, height)
    return v


def _height(at: AtSites, x: Tensor, v: Tensor) -> Tensor:
    log_joint = at.clients.log_joint_at(x, v)
    return torch.where(log_joint.isfinite(), log_joint, -math.inf)
