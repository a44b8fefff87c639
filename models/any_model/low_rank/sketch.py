r"""A curvature by its diagonal and its products with few fixed directions, and the precision that follows.

    Y = A W,   a = diag A,        W (p, r), W^T W = I, from the run's seed                                          (1)

Both are linear in A, so that clients' are added up, and differences of them too. With A = D_0 + B, where D_0 is the
prior's diagonal,

    N = (B W) (W^T B W)^+ (B W)^T,      P = N + diag(a - diag N)                                                    (2)

N is Nystroem's approximation (Williams and Seeger, 2001; Gittens and Mahoney, 2016): it is B where B has rank r at
most, and never above B where B is positive. P has the diagonal of A.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from hierfl.rng import normals

from .precision import MIN_EIGENVALUE, LowRank

#: eigenvalues of W^T B W that are smaller than this share of the largest count as 0
ZERO = 1e-10
#: largest eigenvalue of a curvature in (2), over the longest image of a unit vector. A larger one comes from the small
#: eigenvalues of an indefinite middle matrix, which are rounding errors.
MAX_EIGENVALUE_RATIO = 1e3

#: of points: by how much a precision may fall in a round, and what share of it is in the diagonal part at least
MAX_FALL, MIN_DIAGONAL_SHARE = 4.0, 0.1


@lru_cache(maxsize=4)
def directions(p: int, rank: int, seed: int) -> Tensor:
    """W, (p, r), the same at the server and at every client; all p directions themselves where r is p."""
    if rank >= p:
        return torch.eye(p, dtype=torch.float64)
    made = normals(torch.Size((p, rank)), seed, "directions of the curvature", dtype=torch.float64)
    return torch.linalg.qr(made)[0]


def nystroem(sketch: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """(2), of matrices (..., p, p): N = F diag(s) F^T with F (..., p, r) and signs s (..., r).

    Args:
        sketch: B W, (..., p, r).
        w: W, (p, r), of any scale.
    """
    q, upper = torch.linalg.qr(w)
    image = torch.linalg.solve_triangular(upper, sketch, upper=True, left=False)
    middle = q.mT @ image
    value, vector = torch.linalg.eigh((middle + middle.mT) / 2)
    image = image @ vector
    size = value.abs()
    length, largest = image.square().sum(-2), size.amax(-1, keepdim=True)
    reach = image.square().sum((-1, -2)).sqrt()[..., None]
    kept = (size > ZERO * largest) & (length <= MAX_EIGENVALUE_RATIO * reach * size)
    factor = image * torch.where(kept, size.clamp_min(1e-300).rsqrt(), 0.0)[..., None, :]
    return factor, torch.where(kept, value.sign(), 0.0)


@dataclass(frozen=True)
class Sketched:
    """(1), of the prior and all clients.

    Attributes:
        diagonal: a, (p,).
        sketch: Y, (p, r).
        prior: of the diagonal, the prior's part, (p,).
        directions: W, (p, r).
        points: which numbers are points, (p,) of bool.
    """

    diagonal: Tensor
    sketch: Tensor
    prior: Tensor
    directions: Tensor
    points: Tensor

    def isfinite(self) -> Tensor:
        """Returns whether each number is finite."""
        return torch.cat([self.diagonal.isfinite(), self.sketch.isfinite().flatten()])

    def square(self) -> Tensor:
        """The products' squares: as many as those of which clients say how they differ between draws."""
        return self.sketch.square()

    def precision(self, old: LowRank) -> LowRank:
        """(2), kept positive definite.

        A diagonal entry that is not positive becomes what :func:`..local.kept_definite` makes of its ratio to that of
        ``old``. Of points, which have no prior, no entry falls by more than :data:`MAX_FALL` in a round, and
        :data:`MIN_DIAGONAL_SHARE` of each stays in the diagonal part: their precision is but the measure of a step.
        """
        before = old.diagonal_of_all
        ratio = self.diagonal / before
        kept = torch.where(ratio.abs() < 1, (1 + ratio.square()) / 2, ratio.abs())
        whole = torch.where(self.diagonal > 0, self.diagonal, kept * before)
        whole = torch.where(self.points, torch.maximum(whole, before / MAX_FALL), whole)
        least = torch.where(self.points, MIN_DIAGONAL_SHARE, MIN_EIGENVALUE) * whole
        base = torch.minimum(torch.maximum(self.prior, least), whole)
        unit = whole.sqrt()[:, None]
        factor, signs = nystroem((self.sketch - base[:, None] * self.directions) / unit, unit * self.directions)
        factor = unit * factor
        left = torch.maximum(whole - factor.square() @ signs, base)
        return LowRank.from_factor(left, factor, signs, self.sketch.shape[1])


def along(diagonal: Tensor, sketch: Tensor, w: Tensor, mean: Tensor) -> Tensor:
    """What represents A m in sums of differences: linear in A, and A m itself where r is p.

        Y W^T m + a * (m - W W^T m)

    Where everyone reports it cancels; of a client that is missing it says how its gradient has changed, roughly.

    Args:
        diagonal: a, (..., p).
        sketch: Y, (..., p, r).
        w: W, (p, r).
        mean: m, (p,).
    """
    within = mean @ w
    return sketch @ within + diagonal * (mean - w @ within)
