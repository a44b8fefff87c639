"""What four forms of a curvature give of a head's posterior; see :mod:`hierfl.inference.local.laplace.curvature`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hierfl.errors import UserError
from hierfl.ppl.gaussian_factors import eigh


class Scaled(Protocol):
    """B of some rows; vectors are (..., S, d)."""

    def solve(self, v: Tensor) -> Tensor:
        """B^-1 v."""
        ...

    def root(self, v: Tensor) -> Tensor:
        """R v with R R^T = B^-1: standard normals become draws."""
        ...

    @property
    def log_det(self) -> Tensor:
        """log |B|, (S,)."""
        ...

    def seen(self) -> Tensor:
        """I - B^-1 = B^-1 diag(r) H diag(r), (S, d, d): to full precision where it is small."""
        ...

    def seen_diagonal(self) -> Tensor:
        """Its diagonal, (S, d)."""
        ...


class Curvature(Protocol):
    """H of some rows; vectors are (..., S, d)."""

    def times(self, v: Tensor) -> Tensor:
        """H v."""
        ...

    def scaled(self, r: Tensor) -> Scaled:
        """B under a prior with these standard deviations (S or 1, d)."""
        ...


#: below this what a client has seen is lost in I - B^-1 to rounding errors of the I
LOST = 0.01


@dataclass(frozen=True)
class Full:
    """H (S, d, d)."""

    matrix: Tensor

    def times(self, v: Tensor) -> Tensor:
        """H v."""
        return _along(self.matrix, v)

    def scaled(self, r: Tensor) -> ScaledFull:
        """B and its Cholesky factor."""
        b = (self.matrix * r[..., :, None]).mul_(r[..., None, :])
        largest = b.diagonal(dim1=-2, dim2=-1).amax()
        b.diagonal(dim1=-2, dim2=-1).add_(1)
        factor, failed = torch.linalg.cholesky_ex(b)
        # (B is at least one: it fails where H is not finite, and costs no other row its answer)
        return ScaledFull(factor.masked_fill_((failed != 0)[:, None, None], torch.nan), self.matrix, r, largest)


@dataclass(frozen=True)
class ScaledFull:
    """B = L L^T, of H (S, d, d) and r; the largest number that B - I has on its diagonals."""

    factor: Tensor
    matrix: Tensor
    r: Tensor
    largest: Tensor

    def solve(self, v: Tensor) -> Tensor:
        """B^-1 v."""
        return _columns(lambda c: torch.cholesky_solve(c, self.factor), v)

    def root(self, v: Tensor) -> Tensor:
        """L^-T v."""
        return _columns(lambda c: torch.linalg.solve_triangular(self.factor.mT, c, upper=True), v)

    @property
    def log_det(self) -> Tensor:
        """log |B|."""
        return 2 * self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def seen(self) -> Tensor:
        """I - B^-1."""
        if bool(self.largest > LOST):
            found = torch.cholesky_inverse(self.factor).neg_()
            found.diagonal(dim1=-2, dim2=-1).add_(1)
            return found
        scaled = (self.matrix * self.r[..., :, None]).mul_(self.r[..., None, :])
        return torch.cholesky_solve(scaled, self.factor)

    def seen_diagonal(self) -> Tensor:
        """Its diagonal."""
        return self.seen().diagonal(dim1=-2, dim2=-1)


@dataclass(frozen=True)
class Diagonal:
    """H's diagonal (S, d), which is also B's form."""

    diagonal: Tensor

    def times(self, v: Tensor) -> Tensor:
        """H v."""
        return self.diagonal * v

    def scaled(self, r: Tensor) -> ScaledDiagonal:
        """B."""
        return ScaledDiagonal(r.square() * self.diagonal)


@dataclass(frozen=True)
class ScaledDiagonal:
    """B - I, a diagonal (S, d)."""

    more: Tensor

    def solve(self, v: Tensor) -> Tensor:
        """B^-1 v."""
        return v / (1 + self.more)

    def root(self, v: Tensor) -> Tensor:
        """B^-1/2 v."""
        return v * (1 + self.more).rsqrt()

    @property
    def log_det(self) -> Tensor:
        """log |B|."""
        return self.more.log1p().sum(-1)

    def seen(self) -> Tensor:
        """I - B^-1."""
        return torch.diag_embed(self.seen_diagonal())

    def seen_diagonal(self) -> Tensor:
        """Its diagonal."""
        return self.more / (1 + self.more)


@dataclass(frozen=True)
class Kronecker:
    """outputs (S, q, q) (x) features (S, p, p)."""

    outputs: Tensor
    features: Tensor

    def times(self, v: Tensor) -> Tensor:
        """H v."""
        matrix = v.unflatten(-1, (self.outputs.shape[-1], -1))
        return (self.outputs @ matrix @ self.features).flatten(-2)

    def scaled(self, r: Tensor) -> ScaledKronecker:
        """B, by the eigenvectors of both.

        Raises:
            UserError: where the prior's spread differs between outputs: then B is no function of the two.
        """
        by_output = r.unflatten(-1, (self.outputs.shape[-1], -1))
        if bool((by_output != by_output[..., :1, :]).any()):
            raise UserError("covariance kronecker needs a prior whose spread is the same for each output of the head")
        feature = by_output[..., 0, :]
        scaled = self.features * feature[..., :, None] * feature[..., None, :]
        values, vectors = eigh(self.outputs)
        feature_values, feature_vectors = eigh(scaled)
        each = values.clamp_min(0)[..., :, None] * feature_values.clamp_min(0)[..., None, :]
        return ScaledKronecker(vectors, feature_vectors, each)


@dataclass(frozen=True)
class ScaledKronecker:
    """B - I = (U (x) V) diag(values) (U (x) V)^T: (S, q, q), (S, p, p) and (S, q, p)."""

    outputs: Tensor
    features: Tensor
    values: Tensor

    def _through(self, v: Tensor, power: float) -> Tensor:
        matrix = v.unflatten(-1, self.values.shape[-2:])
        inside = (self.outputs.mT @ matrix @ self.features) * (1 + self.values).pow(power)
        return (self.outputs @ inside @ self.features.mT).flatten(-2)

    def solve(self, v: Tensor) -> Tensor:
        """B^-1 v."""
        return self._through(v, -1.0)

    def root(self, v: Tensor) -> Tensor:
        """B^-1/2 v."""
        return self._through(v, -0.5)

    @property
    def log_det(self) -> Tensor:
        """log |B|."""
        return self.values.log1p().sum((-2, -1))

    def seen(self) -> Tensor:
        """I - B^-1."""
        each = (self.features[:, None] * (self.values / (1 + self.values))[..., None, :]) @ self.features.mT[:, None]
        found = torch.einsum("sar,sbr,srij->saibj", self.outputs, self.outputs, each)
        d = self.values[0].numel()
        return found.reshape(-1, d, d)

    def seen_diagonal(self) -> Tensor:
        """Its diagonal."""
        return (self.outputs.square() @ (self.values / (1 + self.values)) @ self.features.square().mT).flatten(-2)


@dataclass(frozen=True)
class LowRank:
    """V V^T + diag(rest): (S, d, k) and (S, d)."""

    factor: Tensor
    rest: Tensor

    def times(self, v: Tensor) -> Tensor:
        """H v."""
        return _along(self.factor, _along(self.factor.mT, v)) + self.rest * v

    def scaled(self, r: Tensor) -> ScaledLowRank:
        """B by Woodbury's identity."""
        more = r.square() * self.rest
        within = self.factor * (r * (1 + more).rsqrt())[..., None]
        values, vectors = eigh(within.mT @ within)
        return ScaledLowRank(more, within @ vectors, values.clamp_min(0))


@dataclass(frozen=True)
class ScaledLowRank:
    """B = L (I + U U^T) L, L^2 = diag(level) with level = 1 + more (S, d), U (S, d, k) with U^T U = diag(values)."""

    more: Tensor
    within: Tensor
    values: Tensor

    @property
    def level(self) -> Tensor:
        """1 + more."""
        return 1 + self.more

    def _inner(self, v: Tensor, power: float) -> Tensor:
        """(I + U U^T)^power v."""
        # (log1p and expm1: where U says nothing of a direction both are zero)
        change = torch.expm1(power * torch.log1p(self.values))
        there = self.values > 0
        each = torch.where(there, change / torch.where(there, self.values, 1.0), power)
        return v + _along(self.within, each * _along(self.within.mT, v))

    def solve(self, v: Tensor) -> Tensor:
        """B^-1 v."""
        return self._inner(v * self.level.rsqrt(), -1.0) * self.level.rsqrt()

    def root(self, v: Tensor) -> Tensor:
        """diag(level)^-1/2 (I + U U^T)^-1/2 v."""
        return self._inner(v, -0.5) * self.level.rsqrt()

    @property
    def log_det(self) -> Tensor:
        """log |B|."""
        return self.more.log1p().sum(-1) + torch.log1p(self.values).sum(-1)

    def seen(self) -> Tensor:
        """I - B^-1."""
        scaled = self.within * self.level.rsqrt()[..., None]
        return torch.diag_embed(self.more / self.level) + (scaled / (1 + self.values)[:, None]) @ scaled.mT

    def seen_diagonal(self) -> Tensor:
        """Its diagonal."""
        return (self.more + (self.within.square() / (1 + self.values)[:, None]).sum(-1)) / self.level


def _along(matrix: Tensor, v: Tensor) -> Tensor:
    """M v, (S, a, b) and (..., S, b)."""
    if v.dim() == matrix.dim() - 1:
        return (matrix @ v[..., None]).squeeze(-1)
    return _columns(lambda c: matrix @ c, v)


def _columns(function: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
    """A function of columns (S, d, K) of what is (..., S, d)."""
    rows, d = v.shape[-2:]
    columns = v.reshape(-1, rows, d).permute(1, 2, 0)
    found = function(columns)
    return found.permute(2, 0, 1).reshape(*v.shape[:-1], found.shape[1])
