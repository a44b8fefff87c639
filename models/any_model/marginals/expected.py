r"""What the server knows of the transforms without any client: expected log slopes, and the metric of skew and tail.

    E[sum_k log T_k'(x_k)],  its derivatives by the mean, and by skew and tail                                       (1)
    F_(ka)(lb) = P_kl E[w_ka w_lb] + [k = l] E[w_ka' w_kb'],      w_ka = (dT_k / da) / T_k',    a, b of (e, t)      (2)

(2) is Fisher's information of q(z) about skews and tails, as each moves x with the velocity w (P the precision of x).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jvp

from .transform import Marginals, nodes


@dataclass(frozen=True)
class LogSlope:
    """(1).

    Attributes:
        height: ().
        gradient, curvature: by the mean, first and second derivatives, (p,).
        shape: by skews and tails, (2 p,).
    """

    height: Tensor
    gradient: Tensor
    curvature: Tensor
    shape: Tensor


def log_slope(marginals: Marginals, mean: Tensor, sd: Tensor) -> LogSlope:
    """(1) under x_k ~ N(mean_k, sd_k^2), (p,) each."""
    u, weights = nodes(mean)
    skew, tail, at = (
        of.detach().clone().requires_grad_() for of in (marginals.skew, marginals.tail, torch.zeros_like(mean))
    )
    with torch.enable_grad():
        x = (mean + at) + sd * u[:, None]
        height = (weights @ marginals.shaped(skew, tail).log_slope(x)).sum()
        gradient, *shape = torch.autograd.grad(height, (at, skew, tail), create_graph=True)
        (curvature,) = torch.autograd.grad(gradient.sum(), at)  # (numbers do not depend on each other)
    return LogSlope(height.detach(), gradient.detach(), curvature, torch.cat([of.detach() for of in shape]))


def velocities(marginals: Marginals, x: Tensor) -> Tensor:
    """w at x (N, p), (2, N, p)."""
    skew, tail, one = marginals.skew, marginals.tail, torch.ones_like(marginals.skew)
    by_skew = jvp(lambda e: marginals.shaped(e, tail)(x), (skew,), (one,))[1]
    by_tail = jvp(lambda t: marginals.shaped(skew, t)(x), (tail,), (one,))[1]
    return torch.stack([by_skew, by_tail]) * (-marginals.log_slope(x)).exp()


def metric(marginals: Marginals, x: Tensor, precision: Tensor) -> Tensor:
    """(2), (2 p, 2 p), skews first.

    Args:
        marginals: T.
        x: draws of the guide, (N, p).
        precision: of it, (p, p).
    """
    w, slope = jvp(lambda at: velocities(marginals, at), (x,), (torch.ones_like(x),))
    both = torch.einsum("ank,bnl->akbl", w, w) / len(x) * precision[:, None]
    alone = torch.einsum("ank,bnk->abk", slope, slope) / len(x)
    both = both + torch.diag_embed(alone).movedim(1, 2)
    return both.flatten(0, 1).flatten(1)
