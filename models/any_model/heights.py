"""Heights of the clients' marginal likelihood at many points of the globals, and clients' draws given them.

    log p(y_j | x)  ~  log (1 / I) sum_i exp h_j(x, v_i) / q~(v_i | x),      v_i ~ q~(. | x)

q~ is the guide's conditional, wider and with heavier tails. Each client draws with noise of its own at each point:
then the product of the estimates over clients is an unbiased estimate of the product, and its relative variance is
about the sum of theirs.

The draws of a point are two sets a and b, each spread evenly (:mod:`.spread`); p_a and p_b, the means of their weights,
are independent. Where the guide is near p(v | x, y_j), weights are near p(y_j | x) r with r = N(z; 0, 1) / q(z), whose
mean is known to be 1:

    p_a' = p_a - (p_b / r_b) (r_a - 1),    p_b' = p_b - (p_a / r_a) (r_b - 1),    p = (p_a' + p_b') / 2             (1)

As r_a is independent of p_b and r_b, (1) is unbiased, and where the guide is right it is exact. Its error is half of
p_a' - p_b'. A sum that is hardly positive is set to a share of that of the weights, :data:`MIN_RATIO`.

A client's points (see :mod:`.local`) are where its log joint is highest at x (:mod:`.profiled`): the sum is over its
latents alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hierfl.inference.clients.chunk import ClientChunk

from .blocks import Block, blocks
from .marginals.transform import gaussian
from .names import DRAWS, INNER, OWN_DRAWS
from .profiled import profiled
from .spread import Spread, spread, uniforms
from .steps import AtSites
from .walk import walked

if TYPE_CHECKING:
    from .plain import GaussianModel

#: sets of draws of a point, each with noise of its own
SETS = 2
#: see (1)
MIN_RATIO = 0.05
#: points whose variances are averaged
POINTS_PER_VARIANCE = 16


@dataclass(frozen=True)
class Heights:
    """What is found at M points for S clients.

    Attributes:
        height: estimates of log p(y_j | x), (M, S).
        variance: relative variance of each estimate of p(y_j | x), (M, S).
        drawn: see :attr:`latents`.
    """

    height: Tensor
    variance: Tensor
    drawn: Callable[[], Tensor]

    @property
    def latents(self) -> Tensor:
        """A draw of v_j given x and the client's data, (M, S, q), made where it is asked for."""
        return self.drawn()

    @property
    def noise(self) -> Tensor:
        """The variance at typical points, (S,): a median of means, as with two sets single variances are rough."""
        groups = self.variance.tensor_split(max(1, len(self.variance) // POINTS_PER_VARIANCE))
        return torch.stack([group.mean(0) for group in groups]).median(0).values


def heights(method: GaussianModel, chunk: ClientChunk, points: Tensor, inner: int, purpose: str) -> Heights:
    """Estimates at points of the globals, each with fresh draws.

    Args:
        method: whose model.
        chunk: the clients.
        points: (M, p).
        inner: I, draws of the latents at each point.
        purpose: keys the draws, beside seed and round.
    """
    inner, parts = whole_sets(inner, SETS), []
    for block in blocks(method, chunk, points, inner):
        some = []
        for first, x in block.points:
            _, log_weight, log_ratio = weighted(block.at, block.chunk, x, Spread(inner, SETS), first, purpose)
            total = log_weight.logsumexp(0)
            share = (log_weight - total.clamp_min(-1e300)).exp()
            corrected, variance = corrected_sum(share, log_ratio)
            some.append(torch.stack([total + corrected.log() - math.log(inner), variance]))
        parts.append(torch.cat(some, 1)[..., block.new :])
    height, variance = torch.cat(parts, -1)
    return Heights(height, variance, lambda: latents_at(method, chunk, points, inner, f"{purpose}, latents"))


def latents_at(method: GaussianModel, chunk: ClientChunk, points: Tensor, inner: int, purpose: str) -> Tensor:
    """A draw of v_j given x and the client's data at each point, (M, S, q).

    It is the end of a chain of I independent proposals, each taken with probability min(1, ratio of weights)
    (Tierney, 1994): where weights are at most w times their mean, its law is within (1 - 1 / w)^I of the posterior.
    A few steps of a random walk follow (:mod:`.walk`), for posteriors whose tails the proposals do not reach.

    Args:
        method, chunk, points, inner, purpose: as of :func:`heights`.
    """
    if not method.q:
        return points.new_zeros(len(points), len(chunk.clients), 0)
    parts = []
    for block in blocks(method, chunk, points, inner):
        drawn = torch.cat([_drawn(block, first, x, inner, purpose) for first, x in block.points])
        parts.append(drawn[:, block.new :])
    return torch.cat(parts, 1)


def _drawn(block: Block, first: int, x: Tensor, inner: int, purpose: str) -> Tensor:
    """The ends of the chains at some points (M, p), of which ``first`` is the number of the first."""
    at, chunk = block.at, block.chunk
    v, log_weight, _ = weighted(at, chunk, x, Spread(inner, inner, mirrored=False), first, purpose)
    u = uniforms(chunk, (first * inner, len(x) * inner), purpose, "steps")
    u = u.reshape(len(x), inner, -1).movedim(1, 0).log()
    chosen, weight = v[0], log_weight[0]
    for i in range(1, inner):
        taken = (log_weight[i] - weight.clamp_min(-1e300)) > u[i]
        chosen, weight = torch.where(taken[..., None], v[i], chosen), torch.where(taken, log_weight[i], weight)
    return walked(at, chunk, x, chosen, inner, first, purpose)


def relative_variance(share: Tensor) -> Tensor:
    """The relative variance of a mean of I independent numbers, by their shares of the sum along the first dimension:
    one's over I.
    """
    number = len(share)
    return (share.square().sum(0) - 1 / number).clamp_min(0) * number / max(1, number - 1)


def corrected_sum(share: Tensor, log_ratio: Tensor) -> tuple[Tensor, Tensor]:
    """(1), relative to the mean of all weights, and its relative variance, (M, S) each.

    Args:
        share: of the weights' sum, (I, M, S).
        log_ratio: log r of each draw, likewise.
    """
    of_sets = share.unflatten(0, (SETS, -1)).sum(1)
    ratio = log_ratio.exp().unflatten(0, (SETS, -1)).mean(1)
    reference = of_sets / ratio.clamp_min(MIN_RATIO)
    made = of_sets - reference.flip(0) * (ratio - 1)
    total = made.sum(0).clamp_min(MIN_RATIO)
    return total, relative_variance(made / total)


def whole_sets(inner: int, sets: int) -> int:
    """Rounds a number of draws up to equal sets of pairs."""
    return -(-inner // (2 * sets)) * 2 * sets


def weighted(
    at: AtSites, chunk: ClientChunk, points: Tensor, how: Spread, first: int, purpose: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Draws of the latents at points of the globals, (I, M, S, q), set by set, with log weights and log r, (I, M, S).

    Args:
        at: the clients, and what is drawn from.
        chunk: the same clients.
        points: of the globals, unconstrained, (M, p).
        how: the draws of a point.
        first: number of the first of these points, by which draws are keyed.
        purpose: likewise.
    """
    guide, inner = at.guide, how.draws
    x = points[:, None].expand(-1, len(guide.mean), -1)
    z, log_q, log_ratio = spread(chunk, how, guide.numbers, (first, len(x)), purpose)
    apart = gaussian(at.clients.marginals, points)[:, None] - at.mean
    mean = guide.mean + torch.einsum("sqp,msp->msq", guide.slope, apart.expand_as(x))
    mean = profiled(at.clients, guide, x, mean)
    v = mean + torch.einsum("sqr,imsr->imsq", guide.root[..., guide.spread], z)
    if v.shape[-1]:
        h = at.clients.log_joint_at(x.expand(inner, *x.shape).flatten(0, 1), v.flatten(0, 1)).unflatten(0, (inner, -1))
    else:  # without latents all draws are the same
        h = at.clients.log_joint_at(x, v[0]).expand(inner, -1, -1)
    log_weight = h - (log_q - guide.log_root)
    return v, torch.where(log_weight.isfinite(), log_weight, -math.inf), log_ratio


@dataclass(frozen=True)
class DrawLatents:
    """A local step after the last round: each client's latents at each kept draw of the globals.

    Together they are draws of the joint posterior.

    Args:
        method: whose model.
    """

    method: GaussianModel

    @property
    def trains(self) -> Sequence[str]:
        """The client's draws."""
        return (OWN_DRAWS,)

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """One draw for each."""
        latents = latents_at(self.method, chunk, chunk.shared[DRAWS], int(chunk.shared[INNER]), "posterior")
        return chunk.put({OWN_DRAWS: latents.movedim(0, 1).unsqueeze(1)})
