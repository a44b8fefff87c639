r"""Precisions that are a diagonal and a part of low rank, scaled so that all algebra costs p r^2.

P = D^(1/2) (I + Q diag(k) Q^T) D^(1/2),      Q^T Q = I,   k > -1                                               (1)

P^-1 g = D^(-1/2) (I - Q diag(k / (1 + k)) Q^T) D^(-1/2) g                                       (Woodbury)     (2)
D^(-1/2) (I + Q diag((1 + k)^(-1/2) - 1) Q^T) e,   e ~ N(0, I),   is a draw of N(0, P^-1)                       (3)
log det P = sum log D + sum log (1 + k)                                                    (determinant lemma)  (4)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: the smallest eigenvalue of a precision in the metric of its diagonal part that counts as positive; and the smallest
#: share of a precision's diagonal that is outside of the part of low rank
MIN_EIGENVALUE = 1e-8


#: how far a basis is from an orthonormal one at most
ORTHONORMAL = 1e-6


@dataclass(frozen=True)
class LowRank:
    """(1).

    Attributes:
        diagonal: D, (p,), positive.
        basis: Q, (p, r); columns whose k is 0 may be 0.
        gains: k, (r,).
    """

    diagonal: Tensor
    basis: Tensor
    gains: Tensor

    @classmethod
    def from_factor(cls, diagonal: Tensor, factor: Tensor, signs: Tensor, rank: int) -> LowRank:
        """D + F diag(s) F^T, kept positive definite.

        Eigenvalues 1 + k in the metric of D that are not positive become what they do in
        :func:`..local.kept_definite`. Where F has more columns than ``rank``, directions with the least log (1 + k) are
        left out, and their part of P's diagonal is kept in D.

        Args:
            diagonal: D, (p,), positive.
            factor: F, (p, m).
            signs: s, (m,), each 1, -1, or 0.
            rank: r.
        """
        q, upper = torch.linalg.qr(factor * diagonal.rsqrt()[:, None])
        core = (upper * signs) @ upper.T
        gains, vectors = torch.linalg.eigh((core + core.T) / 2)
        value = 1 + gains
        kept = torch.where(value.abs() < 1, (1 + value.square()) / 2, value.abs())
        gains = torch.where(value > MIN_EIGENVALUE, gains, kept - 1)
        order = gains.log1p().abs().argsort(descending=True)
        basis, gains = q @ vectors[:, order], gains[order]
        if len(gains) > rank:
            lost = (basis[:, rank:].square() * gains[rank:]).sum(-1)
            made = cls(diagonal, basis[:, :rank], gains[:rank])
            return made.with_diagonal(made.diagonal_of_all + diagonal * lost)
        return cls(diagonal, basis, gains).padded(rank)

    @classmethod
    def unpacked(cls, packed: Tensor) -> LowRank:
        """What :attr:`packed` has made."""
        return cls(packed[:-1, 0], packed[:-1, 1:], packed[-1, 1:])

    @property
    def packed(self) -> Tensor:
        """One matrix (p + 1, 1 + r): D and Q side by side, and k below."""
        below = torch.cat([self.gains.new_zeros(1), self.gains])
        return torch.cat([torch.cat([self.diagonal[:, None], self.basis], 1), below[None]])

    def padded(self, rank: int) -> LowRank:
        """The same precision with columns of zeros up to r."""
        more = rank - len(self.gains)
        if more <= 0:
            return self
        basis = torch.cat([self.basis, self.basis.new_zeros(len(self.basis), more)], 1)
        return LowRank(self.diagonal, basis, torch.cat([self.gains, self.gains.new_zeros(more)]))

    @property
    def factor(self) -> Tensor:
        """F of D + F diag(sign k) F^T, (p, r)."""
        return self.diagonal.sqrt()[:, None] * self.basis * self.gains.abs().sqrt()

    @property
    def diagonal_of_all(self) -> Tensor:
        """The diagonal of P, (p,)."""
        return self.diagonal * (1 + self.basis.square() @ self.gains)

    def with_diagonal(self, wanted: Tensor) -> LowRank:
        """Changes D such that the diagonal of P is ``wanted`` (p,), where that is possible."""
        left = wanted - self.diagonal_of_all + self.diagonal
        return LowRank.from_factor(
            left.clamp_min(MIN_EIGENVALUE * self.diagonal), self.factor, self.gains.sign(), len(self.gains)
        )

    def at(self, these: Tensor) -> LowRank:
        """The block of some numbers (p,) of bool: the precision of those given the others."""
        return LowRank.from_factor(self.diagonal[these], self.factor[these], self.gains.sign(), len(self.gains))

    def towards(self, other: LowRank, share: float) -> LowRank:
        """(1 - share) P + share P', to the rank of P."""
        if share in (0.0, 1.0):
            return other if share else self
        factor = torch.cat([(1 - share) ** 0.5 * self.factor, share**0.5 * other.factor], 1)
        signs = torch.cat([self.gains.sign(), other.gains.sign()])
        diagonal = (1 - share) * self.diagonal + share * other.diagonal
        return LowRank.from_factor(diagonal, factor, signs, len(self.gains))

    def _scaled(self, g: Tensor, by: Tensor) -> Tensor:
        """(I + Q diag(by) Q^T) g of vectors (..., p)."""
        return g + (g @ self.basis * by) @ self.basis.T

    def times(self, g: Tensor) -> Tensor:
        """P g of vectors (..., p)."""
        root = self.diagonal.sqrt()
        return root * self._scaled(root * g, self.gains)

    def solve(self, g: Tensor) -> Tensor:
        """(2) of vectors (..., p)."""
        root = self.diagonal.rsqrt()
        return root * self._scaled(root * g, -self.gains / (1 + self.gains))

    def drawn(self, noise: Tensor) -> Tensor:
        """(3) at e (..., p)."""
        return self.diagonal.rsqrt() * self._scaled(noise, (1 + self.gains).rsqrt() - 1)

    @property
    def variance(self) -> Tensor:
        """The diagonal of P^-1, (p,)."""
        return (1 - self.basis.square() @ (self.gains / (1 + self.gains))) / self.diagonal

    @property
    def log_det(self) -> Tensor:
        """(4), ()."""
        return self.diagonal.log().sum() + self.gains.log1p().sum()

    @property
    def definite(self) -> bool:
        """Whether (1) holds."""
        used = self.basis[:, self.gains != 0]
        off = used.T @ used - torch.eye(used.shape[1]).to(used)
        positive = bool((self.diagonal > 0).all()) and bool((self.gains > -1).all())
        return positive and (not off.numel() or bool(off.abs().max() < ORTHONORMAL))

    @property
    def dense(self) -> Tensor:
        """P, (p, p)."""
        return self.diagonal.diag() + (self.factor * self.gains.sign()) @ self.factor.T
