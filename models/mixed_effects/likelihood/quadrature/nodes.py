"""Gauss-Hermite quadrature: where nodes are, and integrals by them.

Around a mode m with curvature F F^T, of nodes x_k and weights w_k,

    u_k = m + F^-T x_k                                                                                      (18)
    log integral exp h(u) du = log sum_k w_k exp h(u_k) - log |F|                                           (19)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ...model.equations import MixedModel

#: default number of nodes along each effect, by the number of random effects. With more effects it is 1, which is
#: Laplace's approximation.
NODES = {1: 15, 2: 9, 3: 5}
#: nodes along each effect of a group of clients, by how many it has; odd, so that one is in the middle
REGION_NODES = {1: 9, 2: 7}


def rule(nodes: int, q: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes v (K, q) and log weights (K,) of the integral of f(v) over R^q, f(v) exp(v^2 / 2) near a polynomial."""
    at, weight = np.polynomial.hermite_e.hermegauss(nodes)
    v = like.new_tensor(list(itertools.product(at, repeat=q)))
    logs = like.new_tensor(list(itertools.product(np.log(weight), repeat=q))).sum(-1)
    return v, logs + 0.5 * v.square().sum(-1)


def away(factor: Tensor, nodes: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes F^-T v around a mode whose curvature is F F^T, (..., q, K), and their log weights (K,)."""
    q = factor.shape[-1]
    v, log_weight = rule(nodes, q, like)
    return torch.linalg.solve_triangular(factor.mT, v.mT.expand(*factor.shape[:-2], q, len(v)), upper=True), log_weight


def log_volume(factor: Tensor) -> Tensor:
    """log |F|, (...)."""
    return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def integral(heights: Callable[[Tensor], Tensor], mode: Tensor, factor: Tensor, nodes: int) -> Tensor:
    """log of the integral of exp(heights(u)) over u, without (2 pi)^(q/2), (...).

    Args:
        heights: (K, ...) of u (K, ..., q).
        mode: around which nodes are, (..., q).
        factor: F of the curvature F F^T there, (..., q, q).
        nodes: along each number of u.
    """
    far, log_weight = away(factor, nodes, mode)
    values = heights(mode + far.movedim(-1, 0))
    log_weight = log_weight.view(-1, *[1] * (values.dim() - 1))
    return (values + log_weight).logsumexp(0) - (log_volume(factor) + 0.5 * factor.shape[-1] * np.log(2 * np.pi))


def weighted(heights: Tensor, u: Tensor, nodes: int) -> Tensor:
    """Log weights of nodes u (..., K, q) that are known, of heights (..., K) without the prior N(u | 0, I)."""
    q = u.shape[-1]
    _, log_weight = rule(nodes, q, u)
    return heights + log_weight - 0.5 * u.square().sum(-1) - 0.5 * q * math.log(2 * math.pi)


def integral_at(heights: Tensor, u: Tensor, factor: Tensor, nodes: int) -> Tensor:
    """log of the integral at nodes that are known, with the prior, (...); arguments as of :func:`weighted`."""
    return weighted(heights, u, nodes).logsumexp(-1) - log_volume(factor)


def nodes_of(method: MixedModel) -> int:
    """Nodes along each random effect of a client, and of a group inside it; Laplace's one of several levels inside, and
    of any beside effects that all clients share.
    """
    if len(method.inside) > 1 or (method.inside and any(level.crossed for level in method.above)):
        return 1
    return int(method.settings.nodes or NODES.get(_effects(method), 1))


def by_laplace(method: MixedModel) -> bool:
    """Whether effects of clients and of groups inside them are integrated out by Laplace's approximation."""
    return method.likelihood.searches_beta and not method.network.spread and nodes_of(method) == 1


def nodes_per_row(method: MixedModel) -> int:
    """The number of nodes of all levels together."""
    return nodes_of(method) ** _effects(method)


def _effects(method: MixedModel) -> int:
    return sum(level.q for level in method.at_site)
