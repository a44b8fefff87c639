"""The clients' marginal likelihoods: random effects integrated out, exactly or by adaptive Gauss-Hermite quadrature.

    log p(D_j | beta, L, sigma) = log integral p(D_j | b, beta, sigma) N(b | 0, L L^T) db

Gaussian: the ELBO at the exact posterior, which is its bound with equality. Other families: quadrature around mode and
curvature (Pinheiro and Bates, 1995).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.padding import buckets
from hierfl.errors import UserError
from hierfl.inference.objective.elbo import elbo
from hierfl.inference.objective.log_joint import log_joint
from hierfl.ppl.restrict import Restrict
from hierfl.ppl.sigma_points import SigmaPoints

from .model import MixedModel
from .newton import PosteriorMode

if TYPE_CHECKING:
    from hierfl.inference.evaluation.fitted import Fitted
    from hierfl.inference.run.result import Run

#: nodes along each axis of a quadrature over so many random effects
NODES = {1: 41, 2: 21, 3: 13, 4: 9, 5: 7}
#: (nodes or sigma points) x examples of a pass, whose second derivatives hold some fifty numbers for each
NODES_PER_PASS = 1_000_000
#: clients of a pass, whose chains' draws are taken along
CLIENTS_PER_PASS = 1000


def marginals(method: MixedModel, batch: Batch, values: Mapping[str, Tensor]) -> Tensor:
    """The log marginal likelihood of each row, differentiable in the shared values: (S,).

    Args:
        method: whose model.
        batch: whose data.
        values: shared and personal values of the rows.

    Raises:
        UserError: where a quadrature would need too many nodes.
    """
    q = len(method.network.random)
    if not method.exact and q not in NODES:
        raise UserError(f"the marginal likelihood of {q} random effects is out of a quadrature's reach")
    with Restrict(values), torch.set_grad_enabled(method.exact and torch.is_grad_enabled()):
        mean, root = PosteriorMode(method).solve(batch)
    if method.exact:
        there = {"b_mean": mean.unsqueeze(1), "b_root": root.unsqueeze(1), "b_draws": values["b_draws"][..., :0, :]}
        return elbo(method, batch, {**values, **there}, SigmaPoints(batch.x.dtype, batch.x.device))
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES[q])
    u = torch.as_tensor(list(itertools.product(nodes, repeat=q)), dtype=batch.x.dtype)  # (K, q)
    log_weight = torch.as_tensor(list(itertools.product(np.log(weights), repeat=q)), dtype=batch.x.dtype).sum(-1)
    u, log_weight = u.to(batch.x.device), log_weight.to(batch.x.device)
    b = mean + torch.einsum("sij,kj->ksi", root, u)
    heights = log_joint(method, batch, values, {"b": b.unsqueeze(2)})
    heights = heights + (log_weight + 0.5 * u.square().sum(-1)).unsqueeze(1)
    return heights.logsumexp(0) + root.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def marginal_log_likelihood(run: Run) -> float:
    """log p(y | beta, L, sigma) of the training data, random effects integrated out; see :func:`marginals`."""
    with torch.no_grad():
        return float(total_marginal(run.fitted, {}))


def passes(fitted: Fitted) -> Iterator[list[int]]:
    """All clients, largest first, in groups that are padded little and fit into memory."""
    federation, method = fitted.federation, fitted.method
    assert isinstance(method, MixedModel)
    q = len(method.network.random)
    nodes = 2 * q if method.exact else NODES.get(q, 1) ** q
    order = sorted(range(federation.clients), key=lambda j: -federation.sizes()[j])
    for first, last in buckets([federation.sizes()[j] for j in order], NODES_PER_PASS // nodes):
        for row in range(first, last, CLIENTS_PER_PASS):
            yield order[row : min(row + CLIENTS_PER_PASS, last)]


def pass_marginal(fitted: Fitted, clients: list[int], moved: Mapping[str, Tensor]) -> Tensor:
    """The sum of these clients' marginals, with some shared values moved."""
    assert isinstance(fitted.method, MixedModel)
    return marginals(fitted.method, fitted.federation.batch(clients), {**fitted.values(clients), **moved}).sum()


def total_marginal(fitted: Fitted, moved: Mapping[str, Tensor]) -> Tensor:
    """The sum of all clients' marginals."""
    parts = [pass_marginal(fitted, clients, moved) for clients in passes(fitted)]
    return torch.stack(parts).sum() if parts else fitted.federation.x.new_zeros((), dtype=fitted.federation.dtype)
