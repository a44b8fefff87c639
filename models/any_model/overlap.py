"""How well a client's part of the guide covers its latents, by many draws at a few points of the globals.

Importance weights cannot show a region that no draw is near. So the same likelihoods are estimated with other
proposals: the guide in another centring, and the guide many times as wide, where only draws far from the guide itself
count. These find a second mode where a client has few latents.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hierfl.inference.clients.chunk import ClientChunk
from hierfl.pareto import k_hat

from .blocks import blocks
from .heights import relative_variance, weighted
from .spread import Spread, spread
from .steps import AtSites

if TYPE_CHECKING:
    from .plain import GaussianModel

#: points, draws at each, and sets of which each has noise of its own
POINTS, DRAWS, SETS = 8, 128, 16
#: how many times as wide other proposals are, and draws of each at a point
PROPOSAL_WIDTHS, DRAWS_PER_PROPOSAL = (4.0, 16.0, 64.0), 64
#: distance in the guide's standard deviations that counts as far, and the largest share of a likelihood beyond it
FAR_STANDARD_DEVIATIONS, MAX_FAR_SHARE = 6.0, 1 / 3
#: the largest k, and what two estimates of a log likelihood may differ by beyond their error
MAX_K, MAX_DIFFERENCE = 0.7, 0.2


@dataclass(frozen=True)
class Overlap:
    """Diagnoses of S clients.

    Attributes:
        heavy: whether their weights have heavy tails: k above 0.7 at most of the points; (S,).
        centrings: whether estimates by the guide as it is, and by another proposal, differ: another centring, or a
            wider guide; (S,).
    """

    heavy: Tensor
    centrings: Tensor


def overlap(method: GaussianModel, chunk: ClientChunk, points: Tensor) -> Overlap:
    """Diagnoses at the first of some points of the globals, (M, p)."""
    parts = []
    for block in blocks(method, chunk, points[:POINTS], DRAWS):
        block_overlap = _of_block(block.at, block.chunk, points[:POINTS])
        parts.append(torch.stack([block_overlap.heavy, block_overlap.centrings])[:, block.new :])
    return Overlap(*torch.cat(parts, -1))


def _of_block(at: AtSites, chunk: ClientChunk, some: Tensor) -> Overlap:
    _, weights, _ = weighted(at, chunk, some, Spread(DRAWS, SETS), 0, "overlap")
    # At most of them: a point far from the posterior, where the guide is wrong, has a k of any size.
    heavy = k_hat(weights.permute(2, 1, 0)).quantile(0.5, -1) > MAX_K
    apart = _far(at, chunk, some, weights) if at.guide.numbers else torch.zeros_like(heavy)
    if not at.clients.sites.centred:
        return Overlap(heavy, apart)
    has, c = at.clients.has_centring.to(some.device), at.clients.centring
    other = at.recentred(torch.where(has, (c < 0.5).to(c), c))
    _, others, _ = weighted(other, chunk, some, Spread(DRAWS, SETS), 0, "another centring")
    return Overlap(heavy, apart | _apart(weights, others))


def _far(at: AtSites, chunk: ClientChunk, points: Tensor, weights: Tensor) -> Tensor:
    """Returns of which clients much of the likelihood lies far from the guide, averaged over the points, (S,)."""
    log_mean, largest = weights.logsumexp(0) - math.log(len(weights)), torch.zeros_like(weights[0])
    how = Spread(DRAWS_PER_PROPOSAL, 1)
    for times in PROPOSAL_WIDTHS:
        wide, purpose = replace(at, guide=replace(at.guide, root=times * at.guide.root)), f"{times} times as wide"
        _, others, _ = weighted(wide, chunk, points, how, 0, purpose)
        z = spread(chunk, how, at.guide.numbers, (0, len(points)), purpose)[0]
        far = times * z.abs().amax(-1) > FAR_STANDARD_DEVIATIONS
        share = (
            torch.where(far, others, -math.inf).logsumexp(0) - math.log(DRAWS_PER_PROPOSAL) - log_mean.clamp_min(-1e300)
        ).exp()
        largest = torch.maximum(largest, share.clamp_max(1).nan_to_num(0.0))
    return largest.mean(0) > MAX_FAR_SHARE


def _apart(some: Tensor, others: Tensor) -> Tensor:
    """Whether the means of weights (I, M, S) differ at most points by more than their error, (S,).

    A client whose other weights have heavy tails is not counted: then the other proposal is the wrong one.
    """
    totals = [w.logsumexp(0) for w in (some, others)]
    error = sum(_error(w, total) for w, total in zip((some, others), totals, strict=True))
    gap = (totals[0] - totals[1]).nan_to_num(0.0).abs()
    sure = k_hat(others.permute(2, 1, 0)).T <= MAX_K
    return ((gap > MAX_DIFFERENCE + 4 * torch.as_tensor(error).sqrt()) & sure).double().mean(0) > 0.5


def _error(weights: Tensor, total: Tensor) -> Tensor:
    """Relative variance of the mean of log weights (I, M, S) whose sum is known, (M, S)."""
    share = (weights - total.clamp_min(-1e300)).exp()
    return relative_variance(share.unflatten(0, (SETS, -1)).sum(1))
