"""The diagonal of a whole network's expected Fisher information."""

from __future__ import annotations

import pyro
import torch
from torch import Tensor

from hierfl.data.padding import buckets
from hierfl.errors import UserError
from hierfl.nn.architecture import Architecture
from hierfl.nn.likelihoods import Softmax

from .chunk import ClientChunk

#: numbers in the weights' copies of the examples that are differentiated together
MOST = 2**22


def fisher_diagonal(network: Architecture, chunk: ClientChunk, w: Tensor) -> Tensor:
    """diag sum_i E_y [g_i g_i^T], g_i the gradient of log p(y | x_i, w_j), over each row's examples: (S, d).

    Labels are averaged over as the network predicts them: a backward pass for each class, and no random numbers. Of
    a network that is linear in its weights it is the log likelihood's second derivative.

    Args:
        network: without batch norm.
        chunk: the rows.
        w: their weights, (S, 1, d).

    Raises:
        UserError: for a network with batch norm.
    """
    if network.base.norm_names:
        raise UserError(f"a Fisher information is of single examples: no batch norm, as network {network.spec} has")
    found = torch.zeros_like(w[:, 0])
    size = max(1, MOST // network.d)
    with pyro.validation_enabled(False), torch.enable_grad():
        for first, last in buckets(chunk.sizes):
            x = chunk.part(first, last).batch().x
            for row, n in enumerate(chunk.sizes[first:last]):
                for some in x[row, :n].split(size):
                    found[first + row] += _of(network, w[first + row].detach(), some)
    return found


def _of(network: Architecture, w: Tensor, x: Tensor) -> Tensor:
    """Of examples (n, *event) under one vector of weights (1, d): each under a copy of it, which has its gradient."""
    copies = w.expand(len(x), *w.shape).clone().requires_grad_()  # (n, 1, d)
    fn = network.likelihood(network(copies, x[:, None]))
    if not isinstance(fn, Softmax):
        (slope,) = torch.autograd.grad(fn.mean.sum(), [copies])
        return (slope.square() / fn.scale[..., None].square()).sum((0, 1))
    logs = fn.log_probs  # (n, 1, C)
    total = torch.zeros_like(w[0])
    for k in range(logs.shape[-1]):
        (slope,) = torch.autograd.grad(logs[..., k].sum(), [copies], retain_graph=True)
        total += (logs[..., k, None].detach().exp() * slope.square()).sum((0, 1))
    return total
