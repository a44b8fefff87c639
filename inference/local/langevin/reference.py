"""Coordinates in which a head's posterior is near to a standard normal.

For a linear head z_j with a Normal prior N(m, D) and H_j the curvature of its log likelihood,

    z_j = mu_j + R u,    R R^T = (H_j + D^-1)^-1,

with mu_j and H_j those of the Gaussian that is nearest to the posterior (averages over it, not at the mode: there
likelihoods that are wide are bent otherwise than where their mass is). It is found from the prior's mean: a function of
shared values and data, not of where a chain is or of what it has seen. So it changes nothing but how fast chains mix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...clients.chunk import ClientChunk
from ..laplace.forms import Curvature, Scaled, ScaledFull
from ..laplace.step import GaussianHead
from ..laplace.target import Target as HeadTarget

#: how often the curvature follows the Gaussian over which it is averaged; Newton's steps each time
TURNS, NEWTON = 5, 3
#: numbers of a head whose curvature is kept whole; the rank of larger ones'
MAX_DENSE_NUMBERS, LOW_RANK = 1500, 200
#: where examples x outputs are fewer than this share of the head's numbers, the curvature is kept as their product
MAX_PRODUCT_SHARE = 0.4
#: numbers of the matrices that rows hold at a time
MAX_NUMBERS_AT_ONCE = 8_000_000


def rank_of(chunk: ClientChunk) -> int:
    """The rank of the rows' curvatures, largest first; 0 where they are kept whole."""
    head = chunk.method.network.head
    rank = chunk.sizes[0] * head.outputs
    if rank <= (LOW_RANK if head.d > MAX_DENSE_NUMBERS else MAX_PRODUCT_SHARE * head.d):
        return max(1, rank)
    return LOW_RANK if head.d > MAX_DENSE_NUMBERS else 0


def parts(chunk: ClientChunk, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Cuts rows, largest first, into those whose matrices have room together.

    In which form a client's is kept depends on the client alone.
    """
    d = chunk.method.network.head.d
    while first < last:
        rank = rank_of(chunk.part(first, last))
        end = min(last, first + max(1, MAX_NUMBERS_AT_ONCE // (d * (2 * rank or d))))
        if not rank:
            end = next((k for k in range(first, end) if rank_of(chunk.part(k, k + 1))), end)
        yield first, end
        first = end


@dataclass(frozen=True)
class Coordinates:
    """The map from u to z, both (C, S, 1, d): z = centre + r R u.

    Attributes:
        centre: (S, d) or (C, S, d), in the order of the weight matrix.
        r: standard deviations of the prior, (S, d).
        h, scaled: the curvature, and B = I + r H r of it.
        matrix: the root R of B^-1, (S, d, d), where it is kept whole.
        order: of the weight matrix.
    """

    centre: Tensor
    r: Tensor
    h: Curvature
    scaled: Scaled
    matrix: Tensor | None
    order: Tensor

    @classmethod
    def from_curvature(cls, centre: Tensor, r: Tensor, h: Curvature, scaled: Scaled, order: Tensor) -> Coordinates:
        """The coordinates of a curvature. A full matrix R is computed here, since every step uses it."""
        matrix = None
        if isinstance(scaled, ScaledFull):
            d = r.shape[-1]
            identity = torch.eye(d, dtype=r.dtype, device=r.device)
            matrix = scaled.root(identity[:, None].expand(d, len(centre) if centre.dim() == 2 else centre.shape[1], d))
            matrix = matrix.permute(1, 2, 0).contiguous()
        return cls(centre, r, h, scaled, matrix, order)

    @classmethod
    def nearest(cls, chunk: ClientChunk, latent: str) -> Coordinates:
        """The nearest of the rows' heads, see above.

        Raises:
            UserError: for a latent that is no linear head with a Normal prior.
        """
        rank = rank_of(chunk)
        step = GaussianHead(
            latent, "", covariance="low_rank" if rank else "full", newton=NEWTON, turns=TURNS, rank=rank
        )
        with torch.no_grad():
            target = HeadTarget(chunk, latent)
            at, h, scaled = step.around_mode(target)
            dtype = chunk.n.dtype
            return cls.from_curvature(at.mu.to(dtype), at.r.to(dtype), _in(dtype, h), _in(dtype, scaled), target.order)

    def __call__(self, u: Tensor) -> Tensor:
        """z."""
        v = u.squeeze(2)
        if self.matrix is None:
            rooted = self.scaled.root(v)
        else:
            rooted = (self.matrix @ v.permute(1, 2, 0)).permute(2, 0, 1)
        return (self.centre + self.r * rooted)[..., self.order.argsort()].unsqueeze(2)

    def inv(self, z: Tensor) -> Tensor:
        """u = R^-1 (z - centre) / r, R^-1 = R^T B."""
        v = (z.squeeze(2)[..., self.order] - self.centre) / self.r
        v = v + self.r * self.h.times(self.r * v)
        with torch.enable_grad():  # R^T of any form: what R's derivative is multiplied by
            leaf = torch.zeros_like(v).requires_grad_()
            (u,) = torch.autograd.grad(self.scaled.root(leaf), leaf, v)
        return u.unsqueeze(2)

    def log_abs_det_jacobian(self, u: Tensor, z: Tensor) -> Tensor:
        """Left out: it is the same everywhere."""
        return torch.zeros_like(u)


Form = TypeVar("Form", Curvature, Scaled)


def _in(dtype: torch.dtype, form: Form) -> Form:
    """A form of a matrix with its tensors in this precision."""
    converted: Any = form
    return replace(converted, **{field.name: getattr(form, field.name).to(dtype) for field in fields(converted)})
