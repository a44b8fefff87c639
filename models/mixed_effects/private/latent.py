"""What noisy sums of products say of the true ones: S_j = C_j^T C_j is latent, and observed with known noise.

    s_j = vech S_j,    t_j = s_j + e_j,    e_j ~ N(0, N)                the mechanism                       (p2)
    s_j ~ N(n_j m, f n_j W(m) + N_11 m m^T)                             one population of rows              (p3)
    m   flat, but m_1 = 1                                               moments of a row
    s_j | t  ~  N(S_j^, V_j + B_j B_j^T),  and B_j B_k^T between clients                                    (p4)

n_j is the noisy count, with N_11 its noise. W is the covariance that products of normal rows with moments m have. The
factor f, above 1 where clients' rows differ, is where the likelihood of all t is largest. Without noise S_j^ = S_j.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

#: f lies between these
FACTORS = (0.05, 100.0)
#: an eigenvalue of moments of a row is no less than this, of columns in [-1, 1]
LEAST_MOMENT = 1e-3
#: noise of less than this beside counts is taken for none where moments are pooled
TINY = 1e-12


def duplication(c: int) -> Tensor:
    """D (c^2, r) with vec S = D vech S; the upper triangle row by row."""
    up, across = torch.triu_indices(c, c)
    matrix, entry = torch.zeros(c * c, len(up), dtype=torch.float64), torch.arange(len(up))
    matrix[up * c + across, entry] = 1.0
    matrix[across * c + up, entry] = 1.0
    return matrix


@dataclass(frozen=True)
class LatentProducts:
    """The true sums of products given noisy ones.

    Attributes:
        counts: n_j, at least c + 2, (J,).
        mean: S_j^, positive definite where there is noise, (J, c, c).
        spread: covariance of S_j's entries given m, (J, c, c, c, c).
        shared: B_j, what all clients' entries owe to m, (J, c, c, r - 1).
        factor: f.
    """

    counts: Tensor
    mean: Tensor
    spread: Tensor
    shared: Tensor
    factor: float

    @classmethod
    def from_noisy(cls, noisy: Tensor, sd: float) -> LatentProducts:
        """Reads noisy sums of products (J, c, c): noise sd ``sd`` on the diagonal and sd / sqrt 2 beside it."""
        clients, c = noisy.shape[:2]
        up, across = torch.triu_indices(c, c)
        r = len(up)
        t, d = noisy[:, up, across], duplication(c)
        noise = torch.where(up == across, sd**2, sd**2 / 2).double()
        n = noisy[:, 0, 0].clamp_min(c + 2.0)
        m = t.sum(0) / n.sum()
        m[0] = 1.0
        w, where = row_covariance((d @ m).reshape(c, c)), n[:, None] * m

        def prior(f: float) -> Tensor:
            return f * n[:, None, None] * w + noise[0] * torch.outer(m, m)

        def away(log_f: float) -> float:
            root = torch.linalg.cholesky(prior(math.exp(log_f))[:, 1:, 1:] + noise[1:].diag())
            z = torch.linalg.solve_triangular(root, (t - where)[:, 1:, None], upper=False)
            volume = 2 * root.diagonal(dim1=1, dim2=2).log().sum(1)
            return float((volume * (1 - n / n.sum())).sum() + z.square().sum())

        factor, is_noisy = 1.0, sd > TINY * float(n.sum())
        if clients > 1 and is_noisy:
            limits = [math.log(f) for f in FACTORS]
            factor = math.exp(float(minimize_scalar(away, bounds=limits, method="bounded", options={"xatol": 0.02}).x))
        q = prior(factor)
        root_of_seen = torch.linalg.cholesky(q[:, 1:, 1:] + noise[1:].diag())
        weight = torch.cholesky_solve(torch.eye(r - 1).to(q).expand(clients, -1, -1), root_of_seen)
        spread_m = torch.linalg.inv((n.square()[:, None, None] * weight).sum(0))
        m = torch.cat([m[:1], spread_m @ (n[:, None, None] * weight @ t[:, 1:, None]).sum(0)[:, 0]])
        gain = q[:, :, 1:] @ weight  # (J, r, r - 1)
        where = n[:, None] * m
        mean = where + (gain @ (t - where)[:, 1:, None])[..., 0]
        left = torch.eye(r).to(q) - gain @ torch.eye(r).to(q)[1:]
        shared = n[:, None, None] * left[:, :, 1:] @ torch.linalg.cholesky(_symmetric(spread_m))
        spread = _symmetric(q - gain @ q[:, 1:, :])
        return cls(
            n, _positive((mean @ d.T).reshape(clients, c, c), LEAST_MOMENT * n * is_noisy),
            (d @ spread @ d.T).reshape(clients, c, c, c, c), (d @ shared).reshape(clients, c, c, r - 1), factor,
        )  # fmt: skip


def row_covariance(moments: Tensor) -> Tensor:
    """W (r, r): the covariance of vech c c^T of one normal row with second moments (c, c), its first number 1."""
    c = len(moments)
    values, vectors = torch.linalg.eigh(moments)
    moments = vectors @ values.clamp_min(LEAST_MOMENT).diag() @ vectors.T
    mean = moments[0] / moments[0, 0]
    around = moments - moments[0, 0] * torch.outer(mean, mean)
    around[0], around[:, 0] = 0.0, 0.0
    i, j = torch.triu_indices(c, c)
    second = around + torch.outer(mean, mean)

    def at(matrix: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return matrix[a[:, None], b[None]]

    # cov(c_i c_j, c_k c_l) of c = mean + d: s_ik s_jl + s_il s_jk less the means' own products
    products = torch.outer(mean, mean)
    return (
        at(second, i, i) * at(second, j, j) + at(second, i, j) * at(second, j, i)
        - at(products, i, i) * at(products, j, j) - at(products, i, j) * at(products, j, i)
    )  # fmt: skip


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.mT) / 2


def _positive(matrices: Tensor, least: Tensor) -> Tensor:
    """Raises eigenvalues to at least (J,); matrices whose eigenvalues are larger keep their bits."""
    values, vectors = torch.linalg.eigh(matrices)
    bent = (values < least[:, None]).any(-1)[:, None, None]
    return torch.where(bent, vectors @ torch.diag_embed(values.maximum(least[:, None])) @ vectors.mT, matrices)
