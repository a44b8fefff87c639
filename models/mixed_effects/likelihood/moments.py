"""Means, roots of covariances and draws, as clients keep them."""

from __future__ import annotations

import torch
from torch import Tensor

from hierfl.inference.state import State

#: what the draws are cut into, for those who compare chains
CHAINS = 4


def kept(name: str, mean: Tensor, covariance: Tensor, draws: Tensor) -> State:
    """What is kept of effects (D, S, *shape): draws, their mean and a root of their covariance."""
    by_chain = draws.transpose(0, 1).unflatten(1, (-1, len(draws) // chains_of(len(draws))))
    values = {f"{name}_draws": by_chain, f"{name}_mean": mean, f"{name}_root": cholesky(covariance)}
    return {k: v.unsqueeze(1) for k, v in values.items()}


def sample_moments(b: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (S, ..., q) and covariance (S, ..., q, q) of draws (D, S, ..., q)."""
    gap = b - b.mean(0)
    return b.mean(0), torch.einsum("d...i,d...j->...ij", gap, gap) / max(1, len(b) - 1)


def cholesky(covariance: Tensor) -> Tensor:
    """A root of a covariance that may be zero."""
    identity = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    return torch.linalg.cholesky_ex(covariance + 1e-30 * identity).L


def triangle(root: Tensor, factor: Tensor) -> Tensor:
    """The lower triangular root of L (F F^T)^-1 L^T: however small L is, L F^-T is one; its QR has the triangle."""
    wide = torch.linalg.solve_triangular(factor, root.mT.expand_as(factor), upper=False).mT
    upper = torch.linalg.qr(wide.mT).R
    return (upper * upper.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-1)).mT


def chains_of(draws: int) -> int:
    """How many chains so many draws are cut into."""
    return CHAINS if draws % CHAINS == 0 else 1
