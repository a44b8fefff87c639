"""Invariant 4, exact cases: on linear-Gaussian models the fit is the analytic answer."""

from __future__ import annotations

import pytest
import torch
from support.federations import slopes
from support.methods import largest_first, states
from torch.nn.functional import softplus

from hierfl.inference import SVI
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.optimizers import sgd
from hierfl.models import (
    PFedVEM,
)
from hierfl.nn.networks.build import architecture


@pytest.mark.slow
def test_local_svi_converges_to_the_conjugate_posterior() -> None:
    """Linear head, Gaussian noise s, prior N(w, rho^2 I): the posterior is N(m, A^-1), A = X'X/s^2 + I/rho^2,
    m = A^-1 (X'y/s^2 + w/rho^2), and the best mean-field Gaussian has mean m and variances 1/diag(A)."""
    fed, noise = slopes([12, 5, 3, 1]), 0.5
    net = architecture("linear", fed, noise=noise)
    method = PFedVEM(net)
    shared, rows = states(method, fed)
    # the gradient noise of K draws is averaged away by the small steps at the end
    order = largest_first(fed)
    chunk = ClientChunk(method, fed, order, 1, 0, shared, {k: v[order] for k, v in rows.items()})
    for phase, (lr, epochs) in enumerate([(3e-3, 600), (1e-3, 1500), (1e-4, 6000)]):
        chunk = SVI(["mu", "pi"], epochs, sgd(lr), particles=64).run(chunk, phase)
    for position, j in enumerate(order):
        x = torch.cat([fed.x[fed.train[j]], torch.ones(len(fed.train[j]), 1, dtype=torch.float64)], 1)
        y, rho2 = fed.y[fed.train[j]], rows["rho"][j].square()
        precision = x.T @ x / noise**2 + torch.eye(3) / rho2
        mean = torch.linalg.solve(precision, x.T @ y / noise**2 + (shared["w"] / rho2).flatten())
        sigma = softplus(chunk.values["pi"][position]).flatten()
        # 1 % of a posterior standard deviation; Monte-Carlo error of the last phase is about a third of it
        assert ((chunk.values["mu"][position].flatten() - mean).abs() < 0.01 * precision.diagonal().rsqrt()).all()
        assert torch.allclose(sigma.square(), 1 / precision.diagonal(), rtol=0.02)
