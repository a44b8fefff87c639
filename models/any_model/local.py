"""A client's part of the guide, by Newton steps in expectation.

Points of a client (``pyro.param`` within its plate) are numbers w_j of v_j that have no spread given the globals:

    w_j(x) = a_w + C_w (x - m),      q(u_j | x) = N(a_u + C_u (x - m), Lambda_uu^-1),      v_j = (u_j, w_j)

The bound E_q[log p(y_j, u_j | x, w_j(x))] + H[q(u_j | x)] is highest where w_j(x) follows the maximum of the client's
likelihood to first order: then C = Lambda^-1 H_vx as for latents, Lambda = -H_vv of both. So the precision of x that
the client sends has them profiled out, A_j = -(H_xx - H_xv H_vv^-1 H_vx), and what a point does not know of itself
widens the globals. A value that stays while x moves would leave A_j too large by H_xw H_ww^-1 H_wx.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from .moments import Moments

#: the smallest eigenvalue of a correlation matrix that counts as positive
DEFINITE = 1e-10
#: what each client has of a guide
CLIENTS = ("mean", "slope", "root")


@dataclass(frozen=True)
class Conditional:
    """q(v_j | x) = N(a_j + C_j (x - m), L_j L_j^T) of S clients.

    Attributes:
        mean: a_j, (S, q).
        slope: C_j, (S, q, p).
        root: L_j, lower triangular, (S, q, q); a point's column, which moves nothing, is its scale in Newton steps.
        spread: which numbers are no points, (q,).
    """

    mean: Tensor
    slope: Tensor
    root: Tensor
    spread: Tensor

    @property
    def numbers(self) -> int:
        """How many of a client's numbers have a spread."""
        return int(self.spread.sum())

    def draws(self, moved: Tensor, noise: Tensor) -> Tensor:
        """v at x = m + ``moved`` (K, S, p), with ``noise`` (K, S, q)."""
        slopes = torch.einsum("sqp,ksp->ksq", self.slope, moved)
        return self.mean + slopes + torch.einsum("sqr,ksr->ksq", self.root * self.spread, noise)

    def shifted(self, step: Tensor) -> Conditional:
        """The same, around m + ``step``, (S, p)."""
        return replace(self, mean=self.mean + (self.slope @ step[..., None]).squeeze(-1))

    @property
    def entropy(self) -> Tensor:
        """The entropy of q(v_j | x), (S,); points have none."""
        return self.log_root + 0.5 * self.numbers * (1 + math.log(2 * math.pi))

    @property
    def log_root(self) -> Tensor:
        """Log determinant of L_j, points left out, (S,)."""
        return (self.root.diagonal(dim1=-2, dim2=-1).log() * self.spread).sum(-1)

    def where(self, these: Tensor, other: Conditional) -> Conditional:
        """This of some clients (S,), and of the rest the other."""
        pairs = self._pairs(other)
        return replace(
            self, **{k: torch.where(these.view(-1, *(1,) * (a.ndim - 1)), a, b) for k, (a, b) in pairs.items()}
        )

    def halfway(self, other: Conditional) -> Conditional:
        """The mean of this guide's numbers and the other's."""
        return replace(self, **{k: (a + b) / 2 for k, (a, b) in self._pairs(other).items()})

    def some(self, first: int, last: int) -> Conditional:
        """The part of clients first..last-1."""
        return replace(self, **{name: getattr(self, name)[first:last] for name in CLIENTS})

    def _pairs(self, other: Conditional) -> dict[str, tuple[Tensor, Tensor]]:
        """What clients have of both, by name."""
        return {name: (getattr(self, name), getattr(other, name)) for name in CLIENTS}


@dataclass(frozen=True)
class Message:
    """What each client sends: sums over clients are all that the server needs.

    Attributes:
        bound: E[h_j] + H[q(v_j | x)], (S,).
        gradient: b_j, (S, p).
        precision: A_j, (S, p, p).
        spread: see :class:`.moments.Moments`.
    """

    bound: Tensor
    gradient: Tensor
    precision: Tensor
    spread: Tensor


class OwnMoments(Protocol):
    """What a client's Newton step takes of expected derivatives; see :class:`.moments.Moments`."""

    @property
    def height(self) -> Tensor: ...

    @property
    def gradient(self) -> Tensor: ...

    @property
    def spread(self) -> Tensor: ...

    def rows(self, p: int) -> Tensor:
        """Second derivatives by the client's latents and all p + q numbers, (S, q, p + q)."""
        ...

    @property
    def size(self) -> Tensor:
        """Sum of the squares of what :attr:`spread` is of, (S,)."""
        ...


def newton_step(q: Conditional, expected: OwnMoments, p: int, most: float = 3.0) -> tuple[Conditional, Tensor]:
    """The guide's maximum of the quadratic that the expected derivatives describe.

        Lambda = -H_vv,   L L^T = Lambda^-1,   C = Lambda^-1 H_vx,   a + Lambda^-1 g_v

    Latents and points are apart in L: a spread is that at known points.

    Where -H_vv is not positive definite, see :func:`kept_definite`. A client whose derivatives are not finite stays
    where it is.

    Args:
        q: where the derivatives are.
        expected: those.
        p: how many globals.
        most: how far a mean may move, in standard deviations; a quadratic's goes as far as it must.

    Returns:
        The guide, and which clients' means were held back by ``most``, (S,).
    """
    size = q.mean.shape[-1]
    if not size:
        return q, torch.zeros(len(q.mean), dtype=torch.bool, device=q.mean.device)
    rows, g_v = expected.rows(p), expected.gradient[:, p:]
    h_vx, h_vv = rows.split([p, size], -1)
    old = torch.cholesky_inverse(q.root)
    finite = rows.flatten(1).isfinite().all(1) & g_v.isfinite().all(1)
    h_vv = torch.where(finite[:, None, None], h_vv, -old)
    precision = kept_definite(old, -h_vv)
    apart = q.spread[:, None] == q.spread
    root = inverse_root(precision * apart)
    step = torch.linalg.solve(precision, g_v[..., None]).squeeze(-1)
    sd = root.square().sum(-1).sqrt()
    length = (step / sd).abs().amax(-1)
    free = quadratic(expected)
    within_limit = free | (length < most)
    step = step * torch.where(within_limit, 1.0, most / length.clamp_min(1e-300))[:, None]
    stepped = replace(q, mean=q.mean + step, slope=torch.linalg.solve(precision, h_vx), root=root)
    return stepped.where(finite, q), finite & ~within_limit


def quadratic(expected: OwnMoments) -> Tensor:
    """Returns for which clients h is quadratic, (S,): all draws' Hessians are the same."""
    return expected.spread <= 1e-18 * expected.size.clamp_min(1e-300)


def kept_definite(old: Tensor, new: Tensor) -> Tensor:
    """``new`` where it is positive definite; elsewhere a matrix that always is.

    Of the eigenvalues k of ``new`` in the metric of ``old``, those from -1 to 1 become (1 + k^2) / 2, as in Lin,
    Schmidt and Khan (2020), and all others |k|: a square would make a large curvature's step nothing. Whether a matrix
    is definite does not depend on the units of its coordinates.
    """
    if not new.shape[-1]:
        return new
    scale = new.diagonal(dim1=-2, dim2=-1)
    unit = scale.clamp_min(1e-300).rsqrt()
    smallest = torch.linalg.eigvalsh(new * unit[..., None] * unit[..., None, :])[..., 0]
    definite = (scale > 0).all(-1) & (smallest > DEFINITE)
    if bool(definite.all()):
        return new
    root = torch.linalg.cholesky(old)
    whitened = torch.linalg.solve_triangular(root, new, upper=False)
    whitened = torch.linalg.solve_triangular(root, whitened.mT, upper=False)
    value, vector = torch.linalg.eigh((whitened + whitened.mT) / 2)
    value = torch.where(value.abs() < 1, (1 + value.square()) / 2, value.abs())
    half = root @ vector * value.sqrt()[..., None, :]
    return torch.where(definite[..., None, None], new, half @ half.mT)


def inverse_root(precision: Tensor) -> Tensor:
    """A lower triangular root of the inverse, (..., n, n), whatever the units of the coordinates."""
    unit = precision.diagonal(dim1=-2, dim2=-1).rsqrt()
    inverse = torch.linalg.inv(precision * unit[..., None] * unit[..., None, :])
    return unit[..., None] * torch.linalg.cholesky(inverse)


def message(q: Conditional, expected: Moments) -> Message:
    """A client's message: derivatives of its bound by the globals, its own latents moving with them by C_j."""
    p = q.slope.shape[-1]
    eye = torch.eye(p).to(q.slope).expand(len(q.mean), p, p)
    jacobian = torch.cat([eye, q.slope], 1)  # (S, p + q, p)
    return Message(
        expected.height + q.entropy,
        (jacobian.mT @ expected.gradient[..., None]).squeeze(-1),
        -jacobian.mT @ expected.hessian @ jacobian,
        expected.spread,
    )
