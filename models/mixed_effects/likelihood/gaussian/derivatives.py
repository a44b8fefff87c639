"""Two derivatives of the criterion of a quadratic in the coefficients, from those of its sums.

With M = [A a; a^T yy], r = [-beta; 1], A beta = a, and v_i = M_i r but for its last entry, derivatives by number i,

    q = yy - a^T beta = r^T M r,    q_i = r^T M_i r,    q_ij = r^T M_ij r - 2 v_i^T A^-1 v_j
    (log |A|)_i = tr A^-1 A_i,      (log |A|)_ij = tr A^-1 A_ij - tr A^-1 A_i A^-1 A_j
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from .elimination import symmetric


def quadratic(sums: Mapping[str, Tensor], p: int, integrated: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The criterion's height (), gradient (k,) and curvature (k, k), equations (13) and (14).

    Args:
        sums: cross (c,), cross_1 (k, c) and cross_2 (k, k, c), see :func:`.cross_products.polynomial`.
        p: how many coefficients there are.
        integrated: whether they are integrated out; else they are at their maximum.
    """
    m, m_1, m_2 = (symmetric(sums[name][..., :-1], p + 1) for name in ("cross", "cross_1", "cross_2"))
    volume, volume_1, volume_2 = (sums[name][..., -1] for name in ("cross", "cross_1", "cross_2"))
    factor, broken = torch.linalg.cholesky_ex(m[:p, :p])
    if bool(broken):  # digits are lost where the residual's spread is nothing beside the effects': no point of a climb
        return volume * torch.nan, volume_1 * torch.nan, volume_2 * torch.nan
    beta = torch.cholesky_solve(m[:p, p:], factor)
    r = torch.cat([-beta, beta.new_ones(1, 1)])
    across, across_2 = (m_1 @ r).squeeze(-1), (m_2 @ r).squeeze(-1)
    last = r.squeeze(-1)
    half = torch.linalg.solve_triangular(factor, across[:, :p].T, upper=False)  # (p, k)
    height = volume + m[p, p] - (m[:p, p:] * beta).sum()
    slope = volume_1 + across @ last
    bend = volume_2 + across_2 @ last - 2 * half.T @ half
    if integrated:
        k = len(m_1)
        inner_1, inner_2 = m_1[:, :p, :p], m_2[..., :p, :p].reshape(k, k, p * p)
        inverse = torch.cholesky_inverse(factor)
        turned = inverse @ inner_1
        height = height + 2 * factor.diagonal().log().sum() - p * math.log(2 * math.pi)
        slope = slope + turned.diagonal(dim1=1, dim2=2).sum(-1)
        bend = bend + inner_2 @ inverse.flatten() - turned.reshape(k, -1) @ turned.mT.reshape(k, -1).T
    return -0.5 * height, -0.5 * slope, 0.5 * bend
