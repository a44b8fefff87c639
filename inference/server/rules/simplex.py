"""Convex combinations of least squared error: quadratic programs over the simplex, by non-negative least squares."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor


def combinations(variance: Tensor, mean: Tensor) -> Tensor:
    """Convex combinations of all clients' means: for each client the one with the least squared error of its own mean.

        alpha_j = argmin over the simplex of sum_a alpha_a^2 V_a + |sum_a alpha_a (H_j - H_a)|^2

    The first term is the combination's variance, the second its bias squared (Xu, Tong and Huang, ICLR 2023, with
    D_j[a, b] = <H_j - H_a, H_j - H_b>): a sum of squares, so that it is convex as it is. A client with V_j = 0 has
    nothing to gain, and keeps its own.

    Args:
        variance: V, (A,), none below zero.
        mean: H, (A, *shape).

    Returns:
        The weights, (A, A) in float64 on the host, a row for each client; rows sum to one.

    Raises:
        ArithmeticError: where a program is not solved.
    """
    v, h = variance.double().cpu().numpy(), mean.double().cpu().flatten(1).numpy()
    # Distances stay what they are in a basis of the means, of which there are no more than clients.
    places = np.asarray(np.linalg.qr(h.T, mode="r")) if len(h) else h
    rows = np.empty((len(v), len(v)))
    for j in range(len(v)):
        if v[j] == 0:
            rows[j] = np.arange(len(v)) == j
        else:
            rows[j] = least_on_simplex(np.concatenate([np.diag(np.sqrt(v)), places[:, j : j + 1] - places]))
    return torch.from_numpy(rows)


def least_on_simplex(root: np.ndarray) -> np.ndarray:
    """argmin of |root alpha|^2 over alpha >= 0 with sum alpha = 1.

    As non-negative least squares (Lawson and Hanson, 1974): for any m > 0 the least |root x|^2 + m^2 (sum x - 1)^2 over
    x >= 0 has root^T root x >= m^2 (1 - sum x), with equality where x > 0, which for x / sum x are the simplex' own
    optimality conditions. Weights that are not wanted are exactly zero.

    Args:
        root: (R, A); root^T root is the quadratic form, of which no eigenvalue is below zero.

    Returns:
        (A,).

    Raises:
        ArithmeticError: where it is not solved.
    """
    lengths = np.square(root).sum(0)
    shortest = int(lengths.argmin())
    if lengths[shortest] == 0:
        return (np.arange(root.shape[1]) == shortest).astype(float)
    m = np.sqrt(lengths[shortest])  # of the minimum's scale, so that neither term drowns the other
    target = np.zeros(len(root) + 1)
    target[-1] = m
    try:
        x, _ = nnls(np.concatenate([root, np.full((1, root.shape[1]), m)]), target)
    except RuntimeError as error:
        raise ArithmeticError(f"non-negative least squares: {error}") from error
    return x / x.sum()
