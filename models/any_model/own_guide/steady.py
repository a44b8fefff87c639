"""Whether the iterates of a stochastic ascent have stopped to go anywhere: Rhat of their two halves.

Looked at are numbers that mean the same for every guide: mean and log standard deviation of each global, at draws that
are the same in all rounds, and the bound. Steps of one size end where the last iterates are steady; then
steps are half as long (Welandawe et al., 2024). Where the averages of two sizes agree, iterates are averaged.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Rhat of two halves below which they are of one distribution
RHAT = 1.1
#: what halves may differ by in any case: of means in sds and of log sds; of the bound, relative to its size and in nats
STILL, STILL_BOUND = 5e-3, 5e-3
#: what averages of two step sizes, or of the halves of the last average, may differ by: of means in sds and of log sds;
#: the bound, in nats
MAX_DIFFERENCE, MAX_BOUND_DIFFERENCE = 0.05, 0.2


def summary(x: Tensor, bound: Tensor) -> Tensor:
    """What is followed: means, log sds and the bound, (2 p + 1,); from draws x (K, p)."""
    mean = x.mean(0)
    sd = (x - mean).square().mean(0).sqrt()
    return torch.cat([mean, sd.clamp_min(1e-6 * (1 + mean.abs())).log(), bound.reshape(1)])


def gaps(summary: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """How far two summaries are apart: of globals, the largest of means in sds and of log sds, (); of the bound, ()."""
    p = len(summary) // 2
    sd = torch.minimum(summary[p:-1], other[p:-1]).exp()
    apart = torch.cat([(summary[:p] - other[:p]).abs() / sd, (summary[p:-1] - other[p:-1]).abs()])
    return apart.amax() if p else summary.new_zeros(()), (summary[-1] - other[-1]).abs()


def steady(window: Tensor) -> bool:
    """Whether the halves of iterates (W, 2 p + 1) are of one distribution, or do not differ by anything that matters.

    A bound is noisy where globals are still: its halves are compared by Rhat as all others are.
    """
    first, last = window.tensor_split(2)
    n = min(len(first), len(last))
    within = (first[:n].var(0) + last[:n].var(0)) / 2
    between = (first.mean(0) - last.mean(0)).square() / 2
    rhat = ((1 - 1 / n) + between / within.clamp_min(1e-300)).sqrt()
    p = window.shape[1] // 2
    sd = last.mean(0)[p:-1].exp()
    apart = (first.mean(0) - last.mean(0)).abs()
    allowed = torch.cat([STILL * sd, torch.full_like(sd, STILL), STILL_BOUND * (1 + last.mean(0)[-1:].abs() / 1e3)])
    return bool(((rhat < RHAT) | (apart <= allowed)).all())


def same(summary: Tensor, other: Tensor) -> bool:
    """Whether two averages of iterates say the same."""
    of_globals, of_bound = gaps(summary, other)
    return bool(of_globals < MAX_DIFFERENCE) and bool(of_bound < MAX_BOUND_DIFFERENCE + 1e-4 * summary[-1].abs())
