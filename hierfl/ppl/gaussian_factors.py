"""Gaussian factors in natural parameters, in which products of densities are sums.

A factor of z in R^D is exp(h^T z - z^T Lambda z / 2), h = Lambda mu. Nothing is normalised, so that a factor may say
nothing (Lambda = 0) of some directions or of all, and a quotient is a cavity: what all others say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..errors import UserError, unknown

#: of a precision matrix: lambda I | diag(lambda) | any
Kind = Literal["scalar", "diagonal", "full"]
KINDS: tuple[Kind, ...] = ("scalar", "diagonal", "full")


@dataclass(frozen=True)
class Gaussian:
    """Factors of one kind, any number of them side by side (...).

    Attributes:
        linear: h, (..., D).
        precision: Lambda, (..., 1), (..., D) or (..., D, D).
        kind: of the precision.
    """

    linear: Tensor
    precision: Tensor
    kind: Kind

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown("kind of precision", self.kind, KINDS)
        d = self.linear.shape[-1]
        wanted = {"scalar": (1,), "diagonal": (d,), "full": (d, d)}[self.kind]
        if self.precision.shape != (*self.linear.shape[:-1], *wanted):
            raise UserError(
                f"a {self.kind} precision of factors {tuple(self.linear.shape)} has shape "
                f"{(*self.linear.shape[:-1], *wanted)}, not {tuple(self.precision.shape)}"
            )

    @classmethod
    def from_mean(cls, mean: Tensor, precision: Tensor, kind: Kind) -> Gaussian:
        """N(mean, Lambda^-1), from mean (..., D)."""
        return cls(_times(precision, mean, kind), precision, kind)

    def __mul__(self, other: Gaussian) -> Gaussian:
        """The product of two densities."""
        first, two = self.like(other), other.like(self)
        return Gaussian(first.linear + two.linear, first.precision + two.precision, first.kind)

    def __truediv__(self, other: Gaussian) -> Gaussian:
        """The cavity: this density without one of its factors."""
        first, two = self.like(other), other.like(self)
        return Gaussian(first.linear - two.linear, first.precision - two.precision, first.kind)

    def like(self, other: Gaussian) -> Gaussian:
        """The same factors with a precision of the other's kind, or of its own where that says more."""
        kind = KINDS[max(KINDS.index(self.kind), KINDS.index(other.kind))]
        if kind == self.kind:
            return self
        precision = self.precision.expand(self.linear.shape)
        return Gaussian(self.linear, precision if kind == "diagonal" else torch.diag_embed(precision), kind)

    def mean(self, otherwise: Tensor) -> Tensor:
        """mu = Lambda^-1 h, the mode: (..., D), in double precision whatever the factors' type.

        Along directions of which the factors say nothing (but for rounding, beside what they say of others) the mean is
        ``otherwise`` (..., D); in all directions where Lambda is no precision, with a negative one among them. Where a
        full one is not finite, neither is the mean.
        """
        h, precision, start = self.linear.double(), self.precision.double(), otherwise.double()
        gap = h - _times(precision, start, self.kind)
        little = h.shape[-1] * torch.finfo(h.dtype).eps
        if self.kind != "full":
            return (start + _solved(precision, gap, little)).to(otherwise)
        root, failed = torch.linalg.cholesky_ex(precision)
        pivots = root.diagonal(dim1=-2, dim2=-1).square()
        definite = (failed == 0) & (pivots.amin(-1) > little * pivots.amax(-1))
        step = torch.where(definite[..., None], torch.cholesky_solve(gap[..., None], root)[..., 0], 0.0)
        if not bool(definite.all()):  # most often it is: then this is the one thing that the device is asked
            values, vectors = eigh(precision[~definite])
            components = _solved(values, (vectors.mT @ gap[~definite][..., None])[..., 0], little)
            step[~definite] = (vectors @ components[..., None])[..., 0]
        return (start + step).to(otherwise)

    def regularised_mean(self) -> Tensor:
        """(Lambda + epsilon I)^-1 h of full factors, epsilon a rounding error of Lambda: (..., D).

        About the mean, where h = Lambda mu; not a number where Lambda has a negative direction, and huge where h has a
        part of which Lambda says nothing.
        """
        d, info = self.linear.shape[-1], torch.finfo(self.precision.dtype)
        largest = self.precision.diagonal(dim1=-2, dim2=-1).amax(-1)
        epsilon = (10 * d * info.eps * largest + info.tiny**0.5)[..., None, None]
        identity = torch.eye(d, dtype=self.precision.dtype, device=self.precision.device)
        root, failed = torch.linalg.cholesky_ex(self.precision + epsilon * identity)
        mean = torch.cholesky_solve(self.linear[..., None].to(root), root)[..., 0]
        return torch.where((failed == 0)[..., None], mean, torch.nan)

    def packed(self) -> Tensor:
        """The precision's own numbers: (..., 1), (..., D) or (..., D (D + 1) / 2), the lower triangle row by row."""
        if self.kind != "full":
            return self.precision
        rows, columns = torch.tril_indices(*self.precision.shape[-2:], device=self.precision.device)
        return self.precision[..., rows, columns]

    @classmethod
    def unpacked(cls, linear: Tensor, packed: Tensor, kind: Kind) -> Gaussian:
        """The factor of h (..., D) and what :meth:`packed` has returned."""
        if kind != "full":
            return cls(linear, packed, kind)
        d = linear.shape[-1]
        rows, columns = torch.tril_indices(d, d, device=packed.device)
        precision = packed.new_zeros((*packed.shape[:-1], d, d))
        precision[..., rows, columns] = packed
        precision[..., columns, rows] = packed
        return cls(linear, precision, kind)


def eigh(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (..., D) and eigenvectors (..., D, D) of symmetric matrices; not a number where one is not finite.

    torch's own raises where a single one of them is not, which costs the others their answer. In single precision it
    also fails, or gives NaN, for some finite matrices with subnormal numbers; those are done in double precision.

    Raises:
        torch.linalg.LinAlgError: where finite numbers do not converge, which is rare.
    """
    finite = matrices.isfinite().all((-2, -1))[..., None]
    known = torch.where(finite[..., None], matrices, 0.0)
    try:
        values, vectors = torch.linalg.eigh(known)
    except torch.linalg.LinAlgError:
        values, vectors = (v.to(known) for v in torch.linalg.eigh(known.double()))
    if not bool(values.isfinite().all()) or not bool(vectors.isfinite().all()):
        lost = ~(values.isfinite().all(-1) & vectors.isfinite().flatten(-2).all(-1))
        again, turned = torch.linalg.eigh(known.double())
        values = torch.where(lost[..., None], again.to(values), values)
        vectors = torch.where(lost[..., None, None], turned.to(vectors), vectors)
    return torch.where(finite, values, torch.nan), torch.where(finite[..., None], vectors, torch.nan)


def cholesky(matrices: Tensor) -> Tensor:
    """Lower factors (..., D, D) of matrices above zero; not a number where one is not finite, or not above zero.

    torch's own raises where a single one of them is not, which costs the others their answer.
    """
    factor, failed = torch.linalg.cholesky_ex(matrices)
    return torch.where((failed == 0)[..., None, None], factor, torch.nan)


def packed_size(d: int, kind: Kind) -> int:
    """How many numbers a precision has."""
    return {"scalar": 1, "diagonal": d, "full": d * (d + 1) // 2}[kind]


def _times(precision: Tensor, vector: Tensor, kind: Kind) -> Tensor:
    return (precision @ vector[..., None])[..., 0] if kind == "full" else precision * vector


def _solved(precision: Tensor, gap: Tensor, little: float) -> Tensor:
    """gap / precision (..., 1 or D), zero where that is nothing, and everywhere where one of them is negative."""
    least = little * precision.abs().amax(-1, keepdim=True)
    positive = precision > least
    step = torch.where(positive, gap / torch.where(positive, precision, 1.0), 0.0)
    return torch.where((precision >= -least).all(-1, keepdim=True), step, 0.0)


def sample_mean(x: Tensor, n: Tensor) -> Tensor:
    """Means of the first n (...) rows of x (..., Z, D): (..., D)."""
    present = torch.arange(x.shape[-2], device=x.device) < n[..., None]
    return torch.where(present[..., None], x, 0.0).sum(-2) / n[..., None]


def sample_factor(x: Tensor, kind: Kind, alpha: float, cutoff: float, n: Tensor | None = None) -> Gaussian:
    """What a sample says of its population's mean as pFedVMP has it: N(mean, (pinv(Sigma) + alpha I)^-1).

    Sigma is the sample's covariance, divided by its size; variances below ``cutoff`` times the largest count as zero,
    and so does their inverse; so do all that are rounding errors of x. It is no precision of the mean (Eq. 11): with
    many examples it tends to that of a single one; up to n = D it grows with n, which is its rank, and far beyond that
    of a single one, as the least variances are found too small.

    Args:
        x: (..., Z, D), any number of samples side by side.
        kind: "full", or "diagonal" for the variances alone.
        alpha: added to the precision, everywhere.
        cutoff: share of the largest variance.
        n: how many rows of each sample are there, the first ones, (...), at least one; all where None.

    Returns:
        Factors in double precision; not finite where the sample is not.
    """
    if kind == "scalar":
        raise UserError(f"a sample's spread is diagonal or full, not {kind}")
    z, d = x.shape[-2:]
    n = torch.full(x.shape[:-2], z, device=x.device) if n is None else n
    present = (torch.arange(z, device=x.device) < n[..., None])[..., None]
    x = torch.where(present, x, 0.0)
    noise = (4 * torch.finfo(x.dtype).eps * x.abs().amax((-2, -1))).square().double()[..., None]
    x, n = x.double(), n.double()[..., None]
    mean = sample_mean(x, n[..., 0])
    centred = torch.where(present, x - mean[..., None, :], 0.0)
    if kind == "diagonal":
        variance = centred.square().sum(-2) / n
        precision = _inverse(variance, cutoff, noise) + alpha
    else:
        if z <= d:  # the smaller of the two Gram matrices has the same eigenvalues, but for zeros
            values, left = eigh(centred @ centred.mT / n[..., None])
            # Sigma = A^T A / n has the eigenvectors A^T u / sqrt(n lambda), u those of A A^T / n
            half = centred.mT @ (left * (_inverse(values, cutoff, d * noise) / n.sqrt())[..., None, :])
            precision = half @ half.mT
        else:
            values, vectors = eigh(centred.mT @ centred / n[..., None])
            precision = (vectors * _inverse(values, cutoff, d * noise)[..., None, :]) @ vectors.mT
        precision = precision + alpha * torch.eye(d, dtype=x.dtype, device=x.device)
    # An infinity has no eigenvalues, and a NaN no smaller or larger ones: then neither mean nor precision is known.
    finite = x.isfinite().all((-2, -1))
    precision = torch.where(finite.view(*finite.shape, *[1] * (precision.dim() - finite.dim())), precision, torch.nan)
    return Gaussian.from_mean(torch.where(finite[..., None], mean, torch.nan), precision, kind)


def _inverse(values: Tensor, cutoff: float, noise: Tensor) -> Tensor:
    """1 / values (..., k), and zero for those below a share of the largest, or of the size of rounding errors."""
    kept = values > torch.maximum(cutoff * values.amax(-1, keepdim=True), noise)
    return torch.where(kept, 1 / torch.where(kept, values, 1.0), 0.0)
