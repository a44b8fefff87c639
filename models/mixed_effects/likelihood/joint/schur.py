"""sum_g E_g^T P_g E_g at many points: what the eliminated groups take from the others' sums of products.

Where each group shares rows with few of the others E is sparse, and the sum is a sparse matrix times the numbers P.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from scipy import sparse
from torch import Tensor

#: the share of products that are not zero, up to which a sparse matrix is faster
SPARSE = 0.1


@dataclass(frozen=True)
class Schur:
    """The Schur complements of S clients.

    Attributes:
        across: E, (S, g, q, m).
        maps: of each client, products by pair of columns (pairs, g); empty where E is not sparse.
        pairs: of each client, the two columns of each pair.
    """

    across: Tensor
    maps: tuple[Any, ...] = ()
    pairs: tuple[tuple[Tensor, Tensor], ...] = ()

    @classmethod
    def from_blocks(cls, across: Tensor) -> Schur:
        """Computes what many points have in common: the products of E's columns, where E is sparse."""
        clients, groups, q, m = across.shape
        if q > 1 or across.device.type != "cpu" or clients == 0:
            return cls(across)
        nonzero = (across[..., 0, :] != 0).sum(-1)
        if float(nonzero.square().sum()) > SPARSE * clients * groups * m * m:
            return cls(across)
        maps = [_products(matrix[:, 0]) for matrix in across]
        return cls(across, tuple(matrix for matrix, _ in maps), tuple(pairs for _, pairs in maps))

    def __call__(self, p: Tensor) -> Tensor:
        """(D, S, m, m), of P (D, S, g, q, q)."""
        m = self.across.shape[-1]
        if not self.maps:
            flat = self.across.flatten(1, 2)
            right = p * self.across if p.shape[-1] == 1 else p @ self.across
            beside = right.flatten(2, 3).permute(1, 2, 0, 3).flatten(2)  # all points at once
            return (flat.mT @ beside).unflatten(-1, (len(p), m)).permute(2, 0, 1, 3)
        total = p.new_zeros(*p.shape[:2], m, m)
        for k, (product_map, (up, across)) in enumerate(zip(self.maps, self.pairs, strict=True)):
            sums = torch.from_numpy(product_map @ p[:, k, :, 0, 0].T.contiguous().numpy()).T
            total[:, k, up, across] = sums
            total[:, k, across, up] = sums
        return total


def _products(e: Tensor) -> tuple[Any, tuple[Tensor, Tensor]]:
    """The products of the columns of one client's E (g, m) in each group, up <= along."""
    group, column = e.nonzero(as_tuple=True)
    counts = torch.bincount(group, minlength=len(e))
    first = counts.cumsum(0) - counts
    times = counts[group]
    entry = torch.arange(len(group)).repeat_interleave(times)
    step = torch.arange(len(entry)) - (times.cumsum(0) - times).repeat_interleave(times)
    other = first[group[entry]] + step
    kept = column[entry] <= column[other]
    entry, other = entry[kept], other[kept]
    values = e[group[entry], column[entry]] * e[group[other], column[other]]
    column_pairs, pair = torch.unique(column[entry] * e.shape[1] + column[other], return_inverse=True)
    pair_map = sparse.csr_matrix(
        (values.numpy(), (pair.numpy(), group[entry].numpy())), shape=(len(column_pairs), len(e))
    )
    return pair_map, (column_pairs // e.shape[1], column_pairs % e.shape[1])
