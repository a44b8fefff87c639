"""A curvature with a matrix for each of some combinations of outputs; see
:mod:`hierfl.inference.local.laplace.curvature`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .forms import blocks_of, columns, same_for_outputs


@dataclass(frozen=True)
class ByOutput:
    """sum_k u_k u_k^T (x) F_k: U = (u_1, ..., u_q), orthonormal (S, q, q), and the F_k (S, q, p, p)."""

    outputs: Tensor
    features: Tensor

    def times(self, v: Tensor) -> Tensor:
        """H v."""
        return _rotated(v, self.outputs, lambda each: self.features @ each)

    def scaled(self, r: Tensor) -> ScaledByOutput:
        """B: a matrix for each combination, by Cholesky's factors.

        Raises:
            UserError: where the prior's spread differs between outputs: then B mixes the combinations.
        """
        feature = same_for_outputs(r, self.outputs.shape[-1], "outputs")[..., None, :]
        more = (self.features * feature[..., :, None]).mul_(feature[..., None, :])
        b = more.clone()
        b.diagonal(dim1=-2, dim2=-1).add_(1)
        factor, failed = torch.linalg.cholesky_ex(b)
        # (B is at least one: it fails where H is not finite, and costs no other row its answer)
        return ScaledByOutput(self.outputs, factor.masked_fill_((failed != 0)[..., None, None], torch.nan), more)


@dataclass(frozen=True)
class ScaledByOutput:
    """B - I = sum_k u_k u_k^T (x) M_k: U (S, q, q), the factors of I + M_k and the M_k, both (S, q, p, p)."""

    outputs: Tensor
    factor: Tensor
    more: Tensor

    def solve(self, v: Tensor) -> Tensor:
        """B^-1 v."""
        return _rotated(v, self.outputs, lambda each: torch.cholesky_solve(each, self.factor))

    def root(self, v: Tensor) -> Tensor:
        """sum_k u_k u_k^T (x) L_k^-T, times v: what signs and order eigenvectors have does not matter to it."""
        solve = torch.linalg.solve_triangular
        return _rotated(v, self.outputs, lambda each: solve(self.factor.mT, each, upper=True))

    @property
    def log_det(self) -> Tensor:
        """log |B|."""
        return 2 * self.factor.diagonal(dim1=-2, dim2=-1).log().sum((-2, -1))

    def seen(self, number: int) -> Tensor:
        """Blocks of I - B^-1: without more numbers than they have where each is of one output."""
        q = self.outputs.shape[-1]
        if number % q:
            whole = torch.einsum("sak,sbk,skij->saibj", self.outputs, self.outputs, self.each)
            return blocks_of(whole.flatten(1, 2).flatten(2), number)
        found = torch.einsum("sak,skij->saij", self.outputs.square(), self.each)
        return blocks_of(found.flatten(0, 1), number // q).unflatten(0, (-1, q)).flatten(1, 2)

    def seen_times(self, v: Tensor) -> Tensor:
        """(I - B^-1) v."""
        return _rotated(v, self.outputs, lambda each: self.each @ each)

    @cached_property
    def each(self) -> Tensor:
        """I - (I + M_k)^-1, (S, q, p, p): to full precision where it is small."""
        return torch.cholesky_solve(self.more, self.factor)


def _rotated(v: Tensor, outputs: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """What a function of columns (S, q, p, K), one for each combination of outputs, makes of v (..., S, q p)."""
    q = outputs.shape[-1]

    def within(column: Tensor) -> Tensor:
        inside = function((outputs.mT @ column.unflatten(1, (q, -1)).flatten(2)).unflatten(-1, (-1, column.shape[-1])))
        return (outputs @ inside.flatten(2)).unflatten(-1, (-1, column.shape[-1])).flatten(1, 2)

    return columns(within, v)
