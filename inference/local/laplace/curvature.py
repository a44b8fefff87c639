"""The curvature of linear heads' log likelihoods, in four forms.

A head with design rows z_i (p numbers, the bias's 1 among them) and outputs W z_i has the curvature

    H = sum_i Lambda_i (x) z_i z_i^T,    Lambda_i = minus the second derivative of log p(y_i | output), (q, q)

in W, row by row (d = q p numbers). Under a prior with standard deviations r = (r_1, ..., r_d) its posterior has the
precision P = H + diag(r)^-2, of which each form gives what is needed through

    P^-1 = diag(r) B^-1 diag(r),    B = I + diag(r) H diag(r),

whose eigenvalues are at least one, whatever the data say.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from hierfl.errors import UserError, unknown
from hierfl.ppl.gaussian_factors import eigh

from .forms import Curvature, Diagonal, Full, Kronecker
from .low_rank import LowRank

Covariance = Literal["diagonal", "kronecker", "low_rank", "full"]
COVARIANCES: tuple[Covariance, ...] = get_args(Covariance)
#: turns of the alternating least squares that finds the nearest Kronecker product
ALTERNATIONS = 4


def curvature(kind: Covariance, z: Tensor, weights: Tensor, rank: int = 0) -> Curvature:
    """H in one of its forms.

    Args:
        kind: "full" is exact; "diagonal" is H's diagonal; "kronecker" the nearest product of one matrix of the outputs
            and one of the features, exact where there is one output; "low_rank" a matrix of this rank and the rest's
            diagonal, exact where n q is at most the rank.
        z: design (S, n, p); rows of zeros are none.
        weights: Lambda_i, (S, n, q, q).
        rank: of "low_rank".
    """
    if kind == "full":
        return Full(_full(z, weights))
    if kind == "diagonal":
        return Diagonal(_diagonal(z, weights))
    if kind == "kronecker":
        return Kronecker(*_nearest_product(z, weights))
    if kind == "low_rank":
        if rank < 1:
            raise UserError(f"a low-rank covariance has a rank of at least 1, not {rank}")
        return LowRank(*_low_rank(z, weights, rank))
    raise unknown("covariance", kind, COVARIANCES)


def product_with(z: Tensor, weights: Tensor, v: Tensor) -> Tensor:
    """The exact H v, v (S, d), without H: (S, d)."""
    q, p = weights.shape[-1], z.shape[-1]
    outputs = z @ v.unflatten(-1, (q, p)).mT  # (S, n, q)
    back = (weights @ outputs[..., None]).squeeze(-1)
    return (back.mT @ z).flatten(-2)


def _diagonal(z: Tensor, weights: Tensor) -> Tensor:
    """(S, d)."""
    return (weights.diagonal(dim1=-2, dim2=-1).mT @ z.square()).flatten(-2)


def _full(z: Tensor, weights: Tensor) -> Tensor:
    """(S, d, d), block by block."""
    rows, _, q, _ = weights.shape
    p = z.shape[-1]
    matrix = z.new_empty((rows, q, p, q, p))
    for a in range(q):
        for b in range(a + 1):
            block = (z * weights[:, :, a, b, None]).mT @ z
            matrix[:, a, :, b] = block
            matrix[:, b, :, a] = block
    return matrix.view(rows, q * p, q * p)


def _nearest_product(z: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """(S, q, q) and (S, p, p), whose Kronecker product is nearest to H (Frobenius; Van Loan and Pitsianis 1993).

    Each is the other's least squares; from matrices that have no negative eigenvalue none can come that has one.
    """
    outputs = weights.sum(1)
    tiny = torch.finfo(z.dtype).tiny
    features = z.mT @ z
    for _ in range(ALTERNATIONS):
        size = outputs.square().sum((-2, -1), keepdim=True).clamp_min(tiny)
        size_along = (weights * (outputs / size)[:, None]).sum((-2, -1))  # (S, n)
        features = (z * size_along[..., None]).mT @ z
        size = features.square().sum((-2, -1), keepdim=True).clamp_min(tiny)
        size_along = ((z @ (features / size)) * z).sum(-1)
        outputs = (weights * size_along[..., None, None]).sum(1)
    return outputs, features


def _low_rank(z: Tensor, weights: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """V (S, d, k) and the diagonal of H - V V^T, (S, d): Nystroem's approximation after one subspace iteration."""
    rows, n, q, _ = weights.shape
    d = q * z.shape[-1]
    k = min(rank, d)

    def times(v: Tensor) -> Tensor:  # (S, d, k)
        outputs = torch.einsum("snp,sqpk->snqk", z, v.unflatten(1, (q, -1)))
        return torch.einsum("snqk,snp->sqpk", weights @ outputs, z).flatten(1, 2)

    if n * q <= k:  # H = F F^T with F = z_i (x) the root of Lambda_i
        values, vectors = eigh(weights)
        root = vectors * values.clamp_min(0).sqrt()[..., None, :]
        factor = torch.einsum("snp,snqr->sqpnr", z, root).reshape(rows, d, n * q)
        return factor, z.new_zeros((rows, d))
    # The same directions for all clients: cosines, which are as good as random ones, and keyed by nothing.
    grid = torch.arange(d, dtype=z.dtype, device=z.device)[:, None] + 0.5
    start = torch.cos(torch.pi / d * grid * torch.arange(k, dtype=z.dtype, device=z.device)).expand(rows, d, k)
    basis = torch.linalg.qr(times(start)).Q
    image = times(basis)
    inner = basis.mT @ image
    level = inner.diagonal(dim1=-2, dim2=-1).amax(-1)[:, None] * 10 * d * torch.finfo(z.dtype).eps
    values, vectors = eigh((inner + inner.mT) / 2)
    kept = values > level
    inverse_root = torch.where(kept, values, 1.0).rsqrt() * kept
    factor = image @ (vectors * inverse_root[:, None])
    return factor, (_diagonal(z, weights) - factor.square().sum(-1)).clamp_min(0)
