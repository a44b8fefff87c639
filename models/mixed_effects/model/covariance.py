"""The random effects' covariance L L^T: L a lower triangle for each random term of the formula, beside each other.

L's entries are what is estimated: the likelihood is smooth in them, also where a standard deviation is zero (lme4 does
the same). Densities are of standard deviations and correlations: their coordinates are log sd, and for each block the
unconstrained numbers of its correlation matrix (Lewandowski, Kurowicka and Joe, 2009; Stan's cholesky_corr).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.distributions import CorrCholeskyTransform, LKJCholesky

#: a correlation is taken no nearer to one where a search begins
LARGEST_START = 0.95


@dataclass(frozen=True)
class Covariance:
    """The covariance of a client's random effects.

    Attributes:
        blocks: how many effects each block has, one after the other; those of different blocks are not correlated.
    """

    blocks: tuple[int, ...]

    @cached_property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Row and column of each entry."""
        first, places = 0, []
        for size in self.blocks:
            places += [(first + i, first + k) for i in range(size) for k in range(i + 1)]
            first += size
        return tuple(places)

    @property
    def q(self) -> int:
        """Random effects of a client."""
        return sum(self.blocks)

    @property
    def entries(self) -> int:
        """Numbers of L."""
        return len(self.places)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Effects that have a correlation."""
        ends = list(itertools.accumulate(self.blocks))
        return [
            pair for size, end in zip(self.blocks, ends, strict=True)
            for pair in itertools.combinations(range(end - size, end), 2)
        ]  # fmt: skip

    def matrix(self, entries: Tensor) -> Tensor:
        """L, (..., q, q), of entries (..., r)."""
        nothing = torch.zeros_like(entries[..., 0])
        cells = [[nothing] * self.q for _ in range(self.q)]
        for e, (i, k) in enumerate(self.places):
            cells[i][k] = entries[..., e]
        return torch.stack([torch.stack(row, -1) for row in cells], -2)

    def of_matrix(self, root: Tensor) -> Tensor:
        """The entries (..., r) of L (..., q, q)."""
        return torch.stack([root[..., i, k] for i, k in self.places], -1)

    def diagonal(self, sd: Tensor) -> Tensor:
        """The entries (..., r) of effects that are not correlated, with standard deviations (..., q)."""
        return self.of_matrix(torch.diag_embed(sd))

    def signs(self, entries: Tensor) -> Tensor:
        """Signs (..., r) that make L's diagonal nonnegative where entries are multiplied by them."""
        diagonal = self.matrix(entries).diagonal(dim1=-2, dim2=-1)
        sign = torch.where(diagonal < 0, -1.0, 1.0).to(entries)
        return torch.stack([sign[..., k] for _, k in self.places], -1)

    def upright(self, entries: Tensor) -> Tensor:
        """The entries of the same covariance whose diagonal is nowhere below zero."""
        return entries * self.signs(entries)

    # -- coordinates of densities ---------------------------------------------------------------------------------

    def coordinates(self, entries: Tensor) -> Tensor:
        """log sd (q), then each block's correlations in unconstrained numbers: (..., r)."""
        root = self.matrix(entries)
        sd = root.norm(dim=-1)
        parts, first = [sd.log()], 0
        for size in self.blocks:
            if size > 1:
                part = slice(first, first + size)
                factor = (root / sd[..., None])[..., part, part]
                correlations = CorrCholeskyTransform().inv(factor)
                most = torch.atanh(torch.tensor(LARGEST_START, dtype=correlations.dtype))
                parts.append(correlations.clamp(-most, most))
            first += size
        return torch.cat(parts, -1)

    def of_coordinates(self, coordinates: Tensor) -> Tensor:
        """Entries (..., r)."""
        sd, rest = coordinates[..., : self.q].exp(), coordinates[..., self.q :]
        rows, first, read = [], 0, 0
        for size in self.blocks:
            if size > 1:
                numbers = size * (size - 1) // 2
                y = rest[..., read : read + numbers]
                factor = pair_factor(y[..., 0]) if size == 2 else CorrCholeskyTransform()(y)
                read += numbers
            else:
                factor = torch.ones_like(sd[..., :1, None])
            before, after = first, self.q - first - size
            rows.append(torch.nn.functional.pad(factor * sd[..., first : first + size, None], (before, after)))
            first += size
        return self.of_matrix(torch.cat(rows, -2))

    def log_lkj(self, coordinates: Tensor, concentration: float) -> Tensor:
        """The log density of the correlations in these coordinates, (...)."""
        rest, total, read = coordinates[..., self.q :], torch.zeros_like(coordinates[..., 0]), 0
        for size in self.blocks:
            if size > 1:
                numbers = size * (size - 1) // 2
                y = rest[..., read : read + numbers]
                read += numbers
                if size == 2:
                    total = total + pair_density(y[..., 0], concentration)
                    continue
                factor = CorrCholeskyTransform()(y)
                density = LKJCholesky(size, torch.as_tensor(concentration, dtype=y.dtype), validate_args=False)
                total = total + density.log_prob(factor)
                total = total + CorrCholeskyTransform().log_abs_det_jacobian(y, factor)
        return total


def pair_factor(y: Tensor) -> Tensor:
    """The triangle [[1, 0], [r, sqrt(1 - r^2)]] of one correlation r = tanh y, (...), (..., 2, 2)."""
    most = 1 - torch.finfo(y.dtype).eps
    r = y.tanh().clamp(-most, most)
    rows = torch.ones_like(r), torch.zeros_like(r), r, (1 - r.square()).sqrt()
    return torch.stack(rows, -1).unflatten(-1, (2, 2))


def pair_density(y: Tensor, concentration: float) -> Tensor:
    """The log density of y, (...), where that of r = tanh y is in proportion to (1 - r^2)^(concentration - 1).

    With log (1 - r^2) = -2 (y + log(1 + exp -2y) - log 2), once more for dr / dy.
    """
    constant = 0.5 * math.log(math.pi) + math.lgamma(concentration) - math.lgamma(concentration + 0.5)
    bend = -2 * (y + torch.nn.functional.softplus(-2 * y) - math.log(2))
    return concentration * bend - constant
