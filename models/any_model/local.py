"""A client's part of the guide, by Newton steps in expectation."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Protocol

import torch
from torch import Tensor

from .moments import LogJoint, moments

#: the smallest eigenvalue of a correlation matrix that counts as positive
DEFINITE = 1e-10


@dataclass(frozen=True)
class Conditional:
    """q(v_j | x) = N(a_j + C_j (x - m), L_j L_j^T) of S clients.

    Attributes:
        mean: a_j, (S, q).
        slope: C_j, (S, q, p).
        root: L_j, lower triangular, (S, q, q).
    """

    mean: Tensor
    slope: Tensor
    root: Tensor

    def draws(self, moved: Tensor, noise: Tensor) -> Tensor:
        """v at x = m + ``moved`` (K, S, p), with ``noise`` (K, S, q)."""
        slopes = torch.einsum("sqp,ksp->ksq", self.slope, moved)
        return self.mean + slopes + torch.einsum("sqr,ksr->ksq", self.root, noise)

    def shifted(self, step: Tensor) -> Conditional:
        """The same, around m + ``step``, (S, p)."""
        return replace(self, mean=self.mean + (self.slope @ step[..., None]).squeeze(-1))

    @property
    def entropy(self) -> Tensor:
        """Of q(v_j | x), (S,)."""
        log_det = self.root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return log_det + 0.5 * self.mean.shape[-1] * (1 + math.log(2 * math.pi))

    def where(self, these: Tensor, other: Conditional) -> Conditional:
        """This of some clients (S,), and of the rest the other."""
        pairs = [(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)]
        return Conditional(*(torch.where(these.view(-1, *(1,) * (a.ndim - 1)), a, b) for a, b in pairs))

    def halfway(self, other: Conditional) -> Conditional:
        """Between this and the other."""
        pairs = [(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)]
        return Conditional(*((a + b) / 2 for a, b in pairs))


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


def newton_step(q: Conditional, found: OwnMoments, p: int, most: float = 3.0) -> tuple[Conditional, Tensor]:
    """The guide's maximum of the quadratic that the expected derivatives describe.

        Lambda = -H_vv,   L L^T = Lambda^-1,   C = Lambda^-1 H_vx,   a + Lambda^-1 g_v

    Where -H_vv is not positive definite, see :func:`kept_definite`. A client whose derivatives are not finite stays
    where it is.

    Args:
        q: where the derivatives are.
        found: those.
        p: how many globals.
        most: how far a mean may move, in standard deviations; a quadratic's goes as far as it must.

    Returns:
        The guide, and which clients' means were held back by ``most``, (S,).
    """
    size = q.mean.shape[-1]
    if not size:
        return q, torch.zeros(len(q.mean), dtype=torch.bool, device=q.mean.device)
    rows, g_v = found.rows(p), found.gradient[:, p:]
    h_vx, h_vv = rows.split([p, size], -1)
    old = torch.cholesky_inverse(q.root)
    finite = rows.flatten(1).isfinite().all(1) & g_v.isfinite().all(1)
    h_vv = torch.where(finite[:, None, None], h_vv, -old)
    precision = kept_definite(old, -h_vv)
    root = inverse_root(precision)
    step = torch.linalg.solve(precision, g_v[..., None]).squeeze(-1)
    sd = root.square().sum(-1).sqrt()
    length = (step / sd).abs().amax(-1)
    free = quadratic(found)
    short = free | (length < most)
    step = step * torch.where(short, 1.0, most / length.clamp_min(1e-300))[:, None]
    stepped = Conditional(q.mean + step, torch.linalg.solve(precision, h_vx), root)
    return stepped.where(finite, q), finite & ~short


def quadratic(found: OwnMoments) -> Tensor:
    """Of which clients h is quadratic, (S,): all draws' Hessians are the same."""
    return found.spread <= 1e-18 * found.size.clamp_min(1e-300)


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


def message(log_joint: LogJoint, q: Conditional, moved: Tensor, x: Tensor, noise: Tensor) -> Message:
    """A client's message: derivatives of its bound by the globals, its own latents moving with them by C_j."""
    p = x.shape[-1]
    found = moments(log_joint, x, q.draws(moved, noise))
    eye = torch.eye(p).to(x).expand(len(q.mean), p, p)
    along = torch.cat([eye, q.slope], 1)  # (S, p + q, p)
    return Message(
        found.height + q.entropy,
        (along.mT @ found.gradient[..., None]).squeeze(-1),
        -along.mT @ found.hessian @ along,
        found.spread,
    )
