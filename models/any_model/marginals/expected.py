r"""What the server knows of the transforms without any client: expected log slopes, and the metric of skew and tail.

    E[sum_k log T_k'(x_k)],  its derivatives by the mean, and by skew and tail                                       (1)
    w_ka = (dT_k / da) / T_k' - alpha_ka - beta_ka (x_k - m_k),      E[w_ka] = E[w_ka (x_k - m_k)] = 0               (2)
    F_(ka)(lb) = P_kl E[w_ka w_lb] + [k = l] E[w_ka' w_kb'],      a, b of (e, t)                                    (3)

A skew or tail that moves by one moves x with a velocity, of which alpha + beta (x - m) is what mean and standard
deviation of x do as well: the guide takes that part back in their steps. (3) is Fisher's information of q(z) about what
is left (P the precision of x), so that their steps and those of the Gaussian do not disturb each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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
        values.detach().clone().requires_grad_() for values in (marginals.skew, marginals.tail, torch.zeros_like(mean))
    )
    with torch.enable_grad():
        x = (mean + at) + sd * u[:, None]
        height = (weights @ marginals.shaped(skew, tail).log_slope(x)).sum()
        gradient, *shape = torch.autograd.grad(height, (at, skew, tail), create_graph=True)
        (curvature,) = torch.autograd.grad(gradient.sum(), at)  # numbers do not depend on each other
    return LogSlope(height.detach(), gradient.detach(), curvature, torch.cat([values.detach() for values in shape]))


def velocities(marginals: Marginals, x: Tensor) -> Tensor:
    """(dT_k / da) / T_k' at x (N, p), (2, N, p)."""
    skew, tail = (values.detach().clone().requires_grad_() for values in (marginals.skew, marginals.tail))
    with torch.enable_grad():
        mu, sigma = marginals.shaped(skew, tail).moments
        of_mu, of_sigma = (torch.autograd.grad(values.sum(), (skew, tail), retain_graph=True) for values in (mu, sigma))
    mu, sigma = mu.detach(), sigma.detach()
    u, stretch = (x - marginals.centre) / marginals.scale, marginals.tail.exp()
    arc = stretch * u.asinh()
    sinh, cosh = (arc + marginals.skew).sinh(), (arc + marginals.skew).cosh()
    taken = [
        cosh * by - mu_by - (sinh - mu) * sigma_by / sigma
        for by, mu_by, sigma_by in zip((torch.ones_like(arc), arc), of_mu, of_sigma, strict=True)
    ]
    return torch.stack(taken) * marginals.scale * (1 + u.square()).sqrt() / (stretch * cosh)


@dataclass(frozen=True)
class Metric:
    """(2) and (3), skews first.

    Attributes:
        matrix: F, (2 p, 2 p).
        offset, stretch: alpha and beta, (2 p,).
    """

    matrix: Tensor
    offset: Tensor
    stretch: Tensor


def metric(marginals: Marginals, moved: Tensor, mean: Tensor, precision: Tensor) -> Metric:
    """(3).

    Args:
        marginals: T.
        moved: x - m at draws of the guide, (N, p).
        mean: m, (p,).
        precision: of the guide, (p, p), zeros of points.
    """
    at = (mean + moved).detach().requires_grad_()
    with torch.enable_grad():
        w = velocities(marginals, at)
        slope = torch.stack([torch.autograd.grad(weights.sum(), at, retain_graph=True)[0] for weights in w])
    w = w.detach()
    offset = w.mean(1)
    stretch = (w * moved).mean(1) / moved.square().mean(0).clamp_min(1e-300)
    w, slope = w - offset[:, None] - stretch[:, None] * moved, slope - stretch[:, None]
    both = torch.einsum("ank,bnl->akbl", w, w) / len(moved) * precision[:, None]
    alone = torch.einsum("ank,bnk->abk", slope, slope) / len(moved)
    both = both + torch.diag_embed(alone).movedim(1, 2)
    return Metric(both.flatten(0, 1).flatten(1), offset.flatten(), stretch.flatten())
