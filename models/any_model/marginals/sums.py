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
from ..local import Message
from ..names import MEAN, PHASE, SHAPE, Phase
from ..remembered import triangles
from .transform import Marginals


def by_shape(height: Callable[[Tensor], Tensor], marginals: Marginals, x: Tensor) -> Tensor:
    """(1) of S clients, (S, 2 p): skews first.

    Args:
        height: from globals (K, S, p), unconstrained, to log joints (K, S).
        marginals: T.
        x: draws, (K, S, p).
    """
    count, p = x.shape[1:]
    skew, tail = (
        values.detach().expand(count, p).clone().requires_grad_() for values in (marginals.skew, marginals.tail)
    )
    with torch.enable_grad():
        h = height(marginals.shaped(skew, tail)(x))
        if not h.requires_grad:
            return x.new_zeros(count, 2 * p)
        slopes = torch.autograd.grad(h.sum(), (skew, tail), materialize_grads=True)
    return torch.cat(slopes, -1) / len(x)


def summed(chunk: ClientChunk, clients: Clients, sent: Message, moved: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of clients' curvature (S, c), and A_j m (S, p).

    Where the fit has marginal transforms, (1) is the last of these numbers: zeros while the guide first climbs, which
    is Gaussian then.

    Args:
        chunk: the clients.
        clients: the same.
        sent: bounds and their derivatives.
        moved, v: draws of the guide, x - m (K, S, p), and (K, S, q).
    """
    mean = chunk.shared[MEAN]
    curvature, curvature_at_mean = triangles(mean, sent)
    if SHAPE not in chunk.shared:
        return curvature, curvature_at_mean
    if int(chunk.shared[PHASE]) != Phase.FINE:
        return torch.cat([curvature, curvature.new_zeros(len(curvature), 2 * moved.shape[-1])], 1), curvature_at_mean

    def curvature_of_part(some: Clients, x: Tensor, v: Tensor, new: int) -> Tensor:
        assert some.marginals is not None
        written = replace(some, marginals=None)
        return by_shape(lambda z: written.log_joint(z, v), some.marginals, x)[new:]

    shaped = replace(clients, marginals=Marginals.unpacked(chunk.shared[SHAPE]))
    return torch.cat([curvature, torch.cat(over(shaped, mean + moved, v, curvature_of_part))], 1), curvature_at_mean
