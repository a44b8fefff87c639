"""Nodes of Gauss-Hermite quadrature."""

from __future__ import annotations

import itertools

import numpy as np
from torch import Tensor

from ...model.equations import MixedModel

#: nodes along each of so many random effects where nothing is said; of more it is Laplace's approximation
NODES = {1: 15, 2: 9, 3: 5}
#: nodes along each effect of a group of clients, by how many it has; odd, so that one is in the middle
REGION_NODES = {1: 9, 2: 7}


def rule(nodes: int, q: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes v (K, q) and log weights (K,) of the integral of f(v) over R^q, f(v) exp(v^2 / 2) near a polynomial."""
    at, weight = np.polynomial.hermite_e.hermegauss(nodes)
    v = like.new_tensor(list(itertools.product(at, repeat=q)))
    logs = like.new_tensor(list(itertools.product(np.log(weight), repeat=q))).sum(-1)
    return v, logs + 0.5 * v.square().sum(-1)


def nodes_of(method: MixedModel) -> int:
    """Nodes along each random effect of a client, and of a group inside it."""
    return int(method.settings.nodes or NODES.get(_effects(method), 1))


def nodes_per_row(method: MixedModel) -> int:
    """Of all of them together."""
    return nodes_of(method) ** _effects(method)


def _effects(method: MixedModel) -> int:
    return sum(level.q for level in method.at_site)
