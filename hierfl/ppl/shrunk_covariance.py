"""Covariances of few samples of many numbers, which shrinkage gives an inverse."""

from __future__ import annotations

import torch
from torch import Tensor


def solved(samples: Tensor, gap: Tensor, rho: float) -> Tensor:
    """Sigma^-1 gap, with Sigma = rho_L I + (1 - rho_L) S, rho_L = 1 / (1 + (L - 1) rho): (..., d).

    S is the samples' unbiased covariance, of rank L - 1 at most (Ledoit and Wolf's shrinkage as FedPA has it:
    Al-Shedivat et al., ICLR 2021). With the samples' differences from their mean as rows of X (L, d),

        Sigma = rho_L (I + rho X^T X),    Sigma^-1 g = (g - rho X^T (I + rho X X^T)^-1 X g) / rho_L

    takes O(L^2 d) operations and O(L d) numbers, as the paper's recursion over the samples, of which it is the
    closed form. One sample says nothing of a spread: then it is the gap.

    Args:
        samples: (..., L, d).
        gap: g, (..., d).
        rho: of the shrinkage, not below zero; 0 for the identity.
    """
    number = samples.shape[-2]
    x = samples - samples.mean(-2, keepdim=True)
    inner = rho * x @ x.mT + torch.eye(number, dtype=x.dtype, device=x.device)
    # A check of errors would stall a GPU; what is not finite stays so.
    coefficients, _ = torch.linalg.solve_ex(inner, x @ gap[..., None])
    return (1 + (number - 1) * rho) * (gap - rho * (x.mT @ coefficients)[..., 0])
