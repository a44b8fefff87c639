"""What clients and server compute of the bound's derivatives by skew and tail of each global.

    d / d(e, t) E[h(T(x), v)] = E[grad_z h . dT / d(e, t)]          2 p numbers of each client                      (1)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from hierfl.inference.clients.chunk import ClientChunk

from ..evaluating import Clients
from ..in_parts import over
from ..names import PHASE, SHAPE, Phase
from .transform import Marginals


def by_shape(height: Callable[[Tensor], Tensor], marginals: Marginals, x: Tensor) -> Tensor:
    """(1) of S clients, (S, 2 p): skews first.

    Args:
        height: from globals (K, S, p), unconstrained, to log joints (K, S).
        marginals: T.
        x: draws, (K, S, p).
    """
    count, p = x.shape[1:]
    skew, tail = (of.detach().expand(count, p).clone().requires_grad_() for of in (marginals.skew, marginals.tail))
    with torch.enable_grad():
        h = height(marginals.shaped(skew, tail)(x))
        if not h.requires_grad:
            return x.new_zeros(count, 2 * p)
        found = torch.autograd.grad(h.sum(), (skew, tail), materialize_grads=True)
    return torch.cat(found, -1) / len(x)


def with_shape(curvature: Tensor, chunk: ClientChunk, clients: Clients, x: Tensor, v: Tensor) -> Tensor:
    """Numbers of clients' curvature (S, c), followed by (1) where the fit has marginal transforms.

    They are zeros while the guide first climbs, which is Gaussian.

    Args:
        curvature: (S, c).
        chunk: the clients.
        clients: the same.
        x, v: draws of the guide, (K, S, p) and (K, S, q).
    """
    if SHAPE not in chunk.shared:
        return curvature
    if int(chunk.shared[PHASE]) != Phase.FINE:
        return torch.cat([curvature, curvature.new_zeros(len(curvature), 2 * x.shape[-1])], 1)
    marginals = Marginals.unpacked(chunk.shared[SHAPE])

    def of(some: Clients, x: Tensor, v: Tensor, new: int) -> Tensor:
        return by_shape(lambda z: some.log_joint(z, v), marginals, x)[new:]

    return torch.cat([curvature, torch.cat(over(replace(clients, marginals=None), x, v, of))], 1)
