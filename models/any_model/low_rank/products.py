r"""Expected derivatives of log joints with many globals, by products with their Hessians: none has p^2 numbers.

    g = E[grad h],    H_v. = E[hess h] of a client's q latents and all numbers       q products               rows
    A = -(I, C^T) E[hess h] (I, C)^T,     Y = A W                                    r products               sketch
    diag A = diag N + E[z * (A z - N z)],    z of signs, of each draw its own         PROBES products         diagonal

The last is Hutchinson's estimate of what Nystroem's N of (2) in :mod:`.sketch` leaves of a client's own A: it is exact
where the client's curvature has rank r at most, as that of few rows has, and it is unbiased whatever N is, so that sums
over clients are as good as their number (Meyer, Musco, Musco and Woodruff, 2021, do this for traces).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..local import Conditional
from ..moments import ROUNDING, LogJoint
from .precision import LowRank
from .sketch import nystroem

#: products by which the rest of a diagonal is estimated: each has as many vectors of signs as there are draws
PROBES = 4


class Derivatives:
    """The derivatives of log joints at draws x (K, S, p) and v (K, S, q).

    Attributes:
        at: both, (K, S, p + q).
        height: h, (K, S).
        gradient: of h, (K, S, p + q).
    """

    def __init__(self, log_joint: LogJoint, x: Tensor, v: Tensor) -> None:
        both = torch.cat([x, v], -1).detach().requires_grad_()
        with torch.enable_grad():
            h = log_joint(*both.split([x.shape[-1], v.shape[-1]], -1))
            gradient = torch.zeros_like(both)
            if h.requires_grad:
                (gradient,) = torch.autograd.grad(h.sum(), both, create_graph=True, materialize_grads=True)
        self._both, self._gradient = both, gradient
        self.at, self.height, self.gradient = both.detach(), h.detach(), gradient.detach()

    def times(self, vectors: Tensor) -> Tensor:
        """Each draw's Hessian times its vector, (K, S, p + q)."""
        if not self._gradient.requires_grad:
            return torch.zeros_like(self.at)
        with torch.enable_grad():
            directional = (self._gradient * vectors).sum()
            (products,) = torch.autograd.grad(directional, self._both, retain_graph=True, materialize_grads=True)
        return products

    @property
    def bent(self) -> Tensor:
        """Mean square of what gradients are off a line, see :func:`..moments.moments`, (S,)."""
        apart = self.at - self.at.mean(0)
        slope = self.gradient - self.gradient.mean(0)
        off = (slope - self.times(apart)).square().sum(-1).mean(0)
        digits = ROUNDING**2 * self.gradient.square().sum(-1).mean(0)
        return (off - digits).clamp_min(0) / apart.square().sum(-1).mean(0).clamp_min(1e-300)


@dataclass(frozen=True)
class Rows:
    """What a client's Newton step takes: see :class:`..local.OwnMoments`."""

    height: Tensor
    gradient: Tensor
    own: Tensor
    spread: Tensor

    def rows(self, p: int) -> Tensor:
        """Second derivatives by the client's latents and all p + q numbers, (S, q, p + q)."""
        return self.own

    @property
    def size(self) -> Tensor:
        """Sum of the squares of those, (S,)."""
        return self.own.square().sum((-1, -2))


def rows(derivatives: Derivatives, p: int) -> Rows:
    """The rows of a client's own latents, of which q = p + q - p there are."""
    products, spread = [], derivatives.bent
    for i in range(p, derivatives.at.shape[-1]):
        unit = torch.zeros_like(derivatives.at[0, 0])
        unit[i] = 1
        product = derivatives.times(unit)
        products.append(product.mean(0))
        spread = spread + (product - products[-1]).square().mean(0).sum(-1)
    own = (
        torch.stack(products, 1)
        if products
        else derivatives.at.new_zeros(derivatives.at.shape[1], 0, derivatives.at.shape[-1])
    )
    own = torch.cat([own[..., :p], (own[..., p:] + own[..., p:].mT) / 2], -1)
    return Rows(derivatives.height.mean(0), derivatives.gradient.mean(0), own, spread)


@dataclass(frozen=True)
class SketchedBound:
    """What each client says of its bound, or the server of its prior: see :class:`..local.Message`.

    Attributes:
        bound: E[h_j] + H[q(v_j | x)], (S,).
        gradient: b_j, (S, p).
        diagonal: of A_j, (S, p).
        sketch: A_j W, (S, p, r).
        spread: as in :class:`..moments.Moments`, of A_j W, (S,).
    """

    bound: Tensor
    gradient: Tensor
    diagonal: Tensor
    sketch: Tensor
    spread: Tensor


def sketched(
    derivatives: Derivatives, q: Conditional, w: Tensor, signs: Iterator[Tensor], *, rows: bool = True
) -> SketchedBound:
    """The bound's derivatives by the globals, a client's own latents moving with them by its slope C.

    Args:
        derivatives: derivatives at the draws.
        q: the clients' part of the guide.
        w: W, (p, r).
        signs: vectors of 1 and -1, (K, S, p), one for each probe.
        rows: whether the curvature is of rows, of low rank; that of a prior is nearly a diagonal, of which N = 0 leaves
            nothing to estimate.
    """
    p = len(w)

    def product(z: Tensor) -> Tensor:
        """A z of each draw, (K, S, p), at z (..., p)."""
        own = torch.einsum("sqp,...sp->...sq", q.slope, z.expand(*z.shape[:-2], len(q.slope), p))
        both = torch.cat([z.expand(*own.shape[:-1], p), own], -1)
        by_x, by_v = derivatives.times(both).split([p, own.shape[-1]], -1)
        return -(by_x + torch.einsum("sqp,ksq->ksp", q.slope, by_v))

    columns, spread = [], derivatives.bent
    for column in w.T:
        products = product(column[None])
        columns.append(products.mean(0))
        spread = spread + (products - columns[-1]).square().mean(0).sum(-1)
    sketch = torch.stack(columns, -1)
    by_x, by_v = derivatives.gradient.mean(0).split([p, q.mean.shape[-1]], -1)
    gradient = by_x + torch.einsum("sqp,sq->sp", q.slope, by_v)
    return SketchedBound(
        derivatives.height.mean(0) + q.entropy, gradient, _diagonal(sketch, w, product, signs, rows=rows), sketch,
        spread,
    )  # fmt: skip


def _diagonal(
    sketch: Tensor, w: Tensor, product: Callable[[Tensor], Tensor], signs: Iterator[Tensor], *, rows: bool
) -> Tensor:
    """diag A, (S, p)."""
    if w.shape[0] == w.shape[1]:  # W is square: nothing is left
        return torch.einsum("spr,pr->sp", sketch, w)
    if not rows:
        return _near_diagonal(product, signs)
    factor, sign = nystroem(sketch, w)
    diagonals = []
    for z in signs:
        by_sketch = torch.einsum("spr,ksr->ksp", factor * sign[:, None], torch.einsum("spr,ksp->ksr", factor, z))
        diagonals.append((z * (product(z) - by_sketch)).mean(0))
    return torch.einsum("spr,sr->sp", factor.square(), sign) + torch.stack(diagonals).mean(0)


def _near_diagonal(product: Callable[[Tensor], Tensor], signs: Iterator[Tensor]) -> Tensor:
    """diag A of matrices that may be diagonal: then two vectors of signs agree, and no more are needed."""
    diagonals = [z * product(z) for z in itertools.islice(signs, 2)]
    if not torch.allclose(diagonals[0], diagonals[1], rtol=1e-9, atol=0):
        diagonals += [z * product(z) for z in signs]
    return torch.stack(diagonals).mean((0, 1))


def height_beyond(bound: SketchedBound, w: Tensor, moved: Tensor, guide: LowRank, spread: Tensor) -> Tensor:
    """What the mean of h over draws is above its expectation, of the quadratic that a message describes, (S,).

        -1/2 (mean of y^T P y - tr(P S)),      y = x - m at the draws,     P of (2) in :mod:`.sketch`, of each client

    Args:
        bound: the clients' curvature.
        w: W.
        moved: y, (K, S, p).
        guide: of the numbers that are no points, of covariance S.
        spread: which those are, (p,) of bool.
    """
    factor, sign = nystroem(bound.sketch, w)
    rest = (bound.diagonal - torch.einsum("spr,sr->sp", factor.square(), sign))[:, spread]
    factor, moved = factor[:, spread], moved[..., spread]
    within = torch.einsum("spr,ksp->ksr", factor, moved).square().mean(0)
    within_guide = (factor * guide.solve(factor.mT).mT).sum(1)
    off = torch.einsum("sr,sr->s", within - within_guide, sign)
    return -0.5 * (off + ((moved.square().mean(0) - guide.variance) * rest).sum(-1))
