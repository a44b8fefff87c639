"""One Newton step from scores and information."""

from __future__ import annotations

import torch
from torch import Tensor

from hierfl.ppl.gaussian_factors import eigh

#: below this share of the profile information the observed one may be the draws' noise
LEAST_CURVATURE_SHARE = 0.1


def newton_step(
    g: Tensor, profile: Tensor, observed: Tensor, outer: Tensor, free: Tensor, radius: Tensor
) -> tuple[Tensor, Tensor]:
    """H^-1 g among the free numbers, no longer than ``radius`` in the metric of H, and how long it would have been.

    See :class:`~hierfl.inference.server.rules.newton.NewtonScoring`. Not finite where the matrices are not.

    Args:
        g: (k,).
        profile, observed, outer: (k, k).
        free: (k,), False for what is held.
        radius: in standard errors, ().
    """
    # what is held has no curvature, and is in the null space of everything below
    g = torch.where(free, g, 0.0)
    profile, observed, outer = (torch.where(free & free[:, None], h, 0.0) for h in (profile, observed, outer))
    # in units of the profile information: of its diagonal first, since the numbers have units of their own
    scale = torch.where(free, profile.diagonal().abs().clamp_min(torch.finfo(g.dtype).tiny).sqrt(), 1.0)
    values, vectors = eigh(profile / (scale[:, None] * scale))
    # (below zero only where the log joint is not concave: then its size is all that is believed)
    none = 100 * torch.finfo(g.dtype).eps
    root = vectors * torch.where(values.abs() > none, values.abs().clamp_min(none).rsqrt(), 0.0) / scale[:, None]
    share, turn = eigh(root.mT @ observed @ root)
    root = root @ turn
    spread = ((root.mT @ outer) * root.mT).sum(-1)
    share = torch.where(share > LEAST_CURVATURE_SHARE, share, share.maximum(spread))
    along = root.mT @ g
    along = torch.where(share > 0, along / share.clamp_min(torch.finfo(g.dtype).tiny), 0.0)
    length = (along.square() * share).sum().sqrt()
    step = (root @ along) * (radius / length.maximum(radius))
    return torch.where(free, step, 0.0), length
