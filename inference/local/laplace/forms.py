"""What forms of a curvature give of a head's posterior; see :mod:`hierfl.inference.local.laplace.curvature`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
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

    def data_share(self, number: int) -> Tensor:
        """Blocks (S, G, p, p) on the diagonal of I - B^-1 = B^-1 diag(r) H diag(r), G in number and of equal size.

        They are to full precision where they are small. One is the whole matrix, d are its diagonal.
        """
        ...

    def data_share_times(self, v: Tensor) -> Tensor:
        """(I - B^-1) v."""
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
MIN_INFORMATION = 0.01


@dataclass(frozen=True)
class Full:
    """H (S, d, d)."""

    matrix: Tensor

    def times(self, v: Tensor) -> Tensor:
        """H v."""
        return matrix_times(self.matrix, v)

    def scaled(self, r: Tensor) -> ScaledFull:
        """B and its Cholesky factor."""
        b = (self.matrix * r[..., :, None]).mul_(r[..., None, :])
        largest = b.diagonal(dim1=-2, dim2=-1).amax()
        b.diagonal(dim1=-2, dim2=-1).add_(1)
        factor, failed = torch.linalg.cholesky_ex(b)
        # B is at least one: it fails where H is not finite, and costs no other row its answer.
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
        return columns(lambda c: torch.cholesky_solve(c, self.factor), v)

    def root(self, v: Tensor) -> Tensor:
        """L^-T v."""
        return columns(lambda c: torch.linalg.solve_triangular(self.factor.mT, c, upper=True), v)

    @property
    def log_det(self) -> Tensor:
        """log |B|."""
        return 2 * self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def data_share(self, number: int) -> Tensor:
        """Blocks of I - B^-1."""
        return blocks_of(self.whole, number)

    def data_share_times(self, v: Tensor) -> Tensor:
        """(I - B^-1) v."""
        return matrix_times(self.whole, v)

    @cached_property
    def whole(self) -> Tensor:
        """I - B^-1, (S, d, d)."""
        if bool(self.largest > MIN_INFORMATION):
            matrix = torch.cholesky_inverse(self.factor).neg_()
            matrix.diagonal(dim1=-2, dim2=-1).add_(1)
            return matrix
        scaled = (self.matrix * self.r[..., :, None]).mul_(self.r[..., None, :])
        return torch.cholesky_solve(scaled, self.factor)


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

    def data_share(self, number: int) -> Tensor:
        """Blocks of I - B^-1."""
        return torch.diag_embed((self.more / (1 + self.more)).unflatten(-1, (number, -1)))

    def data_share_times(self, v: Tensor) -> Tensor:
        """(I - B^-1) v."""
        return v * self.more / (1 + self.more)


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
        products = values.clamp_min(0)[..., :, None] * feature_values.clamp_min(0)[..., None, :]
        return ScaledKronecker(vectors, feature_vectors, products)


@dataclass(frozen=True)
class ScaledKronecker:
    """B - I = (U (x) V) diag(values) (U (x) V)^T: (S, q, q), (S, p, p) and (S, q, p)."""

    outputs: Tensor
    features: Tensor
    values: Tensor

    def _rotated(self, v: Tensor, factors: Tensor) -> Tensor:
        """(U (x) V) diag(each) (U (x) V)^T v."""
        inside = (self.outputs.mT @ v.unflatten(-1, self.values.shape[-2:]) @ self.features) * factors
        return (self.outputs @ inside @ self.features.mT).flatten(-2)

    def solve(self, v: Tensor) -> Tensor:
        """B^-1 v."""
        return self._rotated(v, (1 + self.values).reciprocal())

    def root(self, v: Tensor) -> Tensor:
        """B^-1/2 v."""
        return self._rotated(v, (1 + self.values).rsqrt())

    @property
    def log_det(self) -> Tensor:
        """log |B|."""
        return self.values.log1p().sum((-2, -1))

    def data_share(self, number: int) -> Tensor:
        """Blocks of I - B^-1: without more numbers than they have where each is of one output."""
        share, outputs = self.values / (1 + self.values), self.outputs.square()
        if number == self.values.shape[-2]:  # one for each output
            return (self.features[:, None] * (outputs @ share)[..., None, :]) @ self.features.mT[:, None]
        if number == self.values[0].numel():
            return (outputs @ share @ self.features.square().mT).flatten(-2)[..., None, None]
        of_outputs = (self.features[:, None] * share[..., None, :]) @ self.features.mT[:, None]
        matrix = torch.einsum("sar,sbr,srij->saibj", self.outputs, self.outputs, of_outputs)
        return blocks_of(matrix.flatten(1, 2).flatten(2), number)

    def data_share_times(self, v: Tensor) -> Tensor:
        """(I - B^-1) v."""
        return self._rotated(v, self.values / (1 + self.values))


def blocks_of(matrix: Tensor, number: int) -> Tensor:
    """Blocks of equal size on the diagonal: (S, d, d) to (S, number, p, p)."""
    shape = (number, matrix.shape[-1] // number)
    return matrix.unflatten(-1, shape).unflatten(-3, shape).diagonal(dim1=-4, dim2=-2).movedim(-1, -3)


def matrix_times(matrix: Tensor, v: Tensor) -> Tensor:
    """M v, (S, a, b) and (..., S, b)."""
    if v.dim() == matrix.dim() - 1:
        return (matrix @ v[..., None]).squeeze(-1)
    return columns(lambda c: matrix @ c, v)


def columns(function: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
    """A function of columns (S, d, K) of what is (..., S, d)."""
    rows, d = v.shape[-2:]
    columns = v.reshape(-1, rows, d).permute(1, 2, 0)
    values = function(columns)
    return values.permute(2, 0, 1).reshape(*v.shape[:-1], values.shape[1])
