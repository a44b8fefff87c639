"""Expected derivatives of the clients' log joint under the guide: all that a fit needs of the data.

    q(x) = N(m, S),    q(v_j | x) = N(a_j + C_j (x - m), L_j L_j^T)
    x = m + R e,       v = a_j + C_j R e + L_j d,       (e, d) draws of N(0, 1)

    g_j = E[grad h_j],   H_j = E[hess h_j],   both in (x, v_j)

The draws (e, d) of a client have exactly mean 0 and covariance 1, so that a quadratic h_j has exact expectations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

#: relative to its size, what a gradient may be off by rounding
ROUNDING = 1e-13
#: from draws x (K, S, p) and v (K, S, q) to log joints (K, S)
LogJoint = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Moments:
    """Expectations under the guide, of S clients.

    Attributes:
        height: E[h], (S,).
        gradient: E[grad h], (S, p + q).
        hessian: E[hess h], (S, p + q, p + q).
        spread: mean square distance of single draws' Hessians from their mean, and of gradients from a line, (S,). It
            is 0 for a quadratic.
        unit: of each number, in which those are measured and :attr:`size` too, (S, p + q), see :func:`units`.
    """

    height: Tensor
    gradient: Tensor
    hessian: Tensor
    spread: Tensor
    unit: Tensor

    def rows(self, p: int) -> Tensor:
        """Second derivatives by the client's latents and all p + q numbers, (S, q, p + q)."""
        return self.hessian[:, p:]

    @property
    def size(self) -> Tensor:
        """Sum of the squares of the Hessian's entries, (S,)."""
        return squares(self.hessian, self.unit)


def units(sd: Tensor, hessian: Tensor) -> Tensor:
    """Unit of each number, (..., n), so that numbers count alike whatever the data's units.

    It is the guide's standard deviation. A point has none; its unit follows from the log joint's curvature.

    Args:
        sd: of the guide, (..., n), 0 of points.
        hessian: (..., n, n).
    """
    curvature = hessian.diagonal(dim1=-2, dim2=-1).abs()
    return torch.where(sd > 0, sd, torch.where(curvature > 0, curvature.rsqrt(), 0.0))


def deviations(at: Tensor) -> Tensor:
    """Standard deviations of draws over their first dimension; exactly 0 where all are the same."""
    return torch.where((at == at[:1]).all(0), 0.0, (at - at.mean(0)).square().mean(0).sqrt())


def squares(matrix: Tensor, unit: Tensor) -> Tensor:
    """Sum of the squares of a matrix (..., n, n) in the units of its numbers (..., n)."""
    return (matrix * unit[..., None] * unit[..., None, :]).square().sum((-1, -2))


def whitened_draws(shift: Tensor, number: int) -> Tensor:
    """Draws (number, S, m) of N(0, 1) whose mean over the first dimension is 0, and whose covariance is exactly 1.

    They are a lattice of scrambled Sobol points, shifted for each client (Cranley and Patterson, 1976), beside its
    mirror image.

    Args:
        shift: of each client, (S, m) in [0, 1).
        number: even, above 2 m.
    """
    m, half = shift.shape[-1], number // 2
    if not m:
        return shift.new_zeros(number, len(shift), 0)
    lattice = SobolEngine(m, scramble=True, seed=0).draw(half, dtype=torch.float64).to(shift)
    u = (lattice[:, None] + shift).remainder(1).clamp(1e-9, 1 - 1e-9)
    z = torch.special.ndtri(u)
    covariance = torch.einsum("ksi,ksj->sij", z, z) / half
    root = torch.linalg.cholesky(covariance)
    z = torch.linalg.solve_triangular(root, z.permute(1, 2, 0), upper=False).permute(2, 0, 1)
    return torch.cat([z, -z])


def moments(log_joint: LogJoint, x: Tensor, v: Tensor) -> Moments:
    """Expected derivatives, at draws of the guide.

    Args:
        log_joint: of each draw and client.
        x, v: draws, (K, S, p) and (K, S, q).
    """
    p, q = x.shape[-1], v.shape[-1]
    both = torch.cat([x, v], -1).detach().requires_grad_()
    with torch.enable_grad():
        h = log_joint(*both.split([p, q], -1))
        gradient = torch.zeros_like(both)
        if h.requires_grad:
            (gradient,) = torch.autograd.grad(h.sum(), both, create_graph=True, materialize_grads=True)
        rows = []
        for i in range(p + q):
            if gradient.requires_grad:
                (row,) = torch.autograd.grad(
                    gradient[..., i].sum(), both, retain_graph=i < p + q - 1, materialize_grads=True
                )
            else:
                row = torch.zeros_like(both)
            rows.append(row)
    hessian = torch.stack(rows, -1) if rows else both.new_zeros(*both.shape, 0)
    mean = hessian.mean(0)
    mean = (mean + mean.mT) / 2
    at, gradient = both.detach(), gradient.detach()
    unit = units(deviations(at), mean)
    off = squares(hessian - mean, unit).mean(0) + _bent(at / unit.clamp_min(1e-300), gradient * unit, mean, unit)
    return Moments(h.detach().mean(0), gradient.mean(0), mean, off, unit)


def _bent(at: Tensor, gradient: Tensor, hessian: Tensor, unit: Tensor) -> Tensor:
    """Mean square distance of gradients (K, S, n) at points from a line, over the points' mean square, (S,).

    A density with a kink, such as Laplace's, has the same Hessian at all draws and is no quadratic.
    """
    apart, slope = at - at.mean(0), gradient - gradient.mean(0)
    line = torch.einsum("sij,ksj->ksi", hessian * unit[..., None] * unit[..., None, :], apart)
    off = (slope - line).square().sum(-1).mean(0)
    digits = ROUNDING**2 * gradient.square().sum(-1).mean(0)
    return (off - digits).clamp_min(0) / apart.square().sum(-1).mean(0).clamp_min(1e-300)
