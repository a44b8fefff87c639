"""Gaussian processes of many clients at once, exactly: each row has examples of its own, padded on the right.

Equations are those of Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, chapters 2 and 3. What is
known of f are Gaussian factors of precision omega_i: exp(kappa_i f_i - omega_i f_i^2 / 2), omega_i = kappa_i = 0 for
nothing; a regression's are omega_i = 1 / noise^2, kappa_i = y_i / noise^2, padded examples' are nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from pyro.distributions import Normal
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

from ..data.padding import buckets
from ..devices import send
from ..rng import ClientNoise
from .polya_gamma import NORMALS, polya_gamma

#: where f itself is drawn: keeps Cholesky's factor of K finite
NUGGET = 1e-6
#: examples, cubed, that cost about as much as one more pass: decides about which rows are padded together
CUBES_PER_PASS = {"cpu": 10**6}
CUBES_PER_PASS_ELSEWHERE = 10**8
#: points of quadrature along a Gaussian
POINTS = 32


@dataclass(frozen=True)
class Kernel:
    """The covariance of f at two inputs.

    "rbf" is scale exp(-|a - b|^2 / (2 length^2)); "linear" is scale (1 + a^T b), that of a^T w + b with all of w and b
    independent N(0, scale).

    Args:
        kind: which.
        scale: see there.
        length: see there; "linear" has none.
        normalise: inputs have length 1.
    """

    kind: Literal["rbf", "linear"]
    scale: float
    length: float = 1.0
    normalise: bool = False

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """(S, n, D), (S, m, D) -> (S, n, m)."""
        if self.normalise:
            a, b = normalize(a, dim=-1), normalize(b, dim=-1)
        inner = a @ b.mT
        if self.kind == "linear":
            return self.scale * (1 + inner)
        # Gradients of cdist at distance 0 are not finite; squared distances may be rounded below 0.
        squared = a.square().sum(-1)[..., None] + b.square().sum(-1)[..., None, :] - 2 * inner
        return self.scale * (-squared.clamp_min(0) / (2 * self.length**2)).exp()

    def variance(self, a: Tensor) -> Tensor:
        """The covariance of f with itself: (S, n, D) -> (S, n)."""
        if self.kind == "rbf":
            return a.new_full(a.shape[:-1], self.scale)
        a = normalize(a, dim=-1) if self.normalise else a
        return self.scale * (1 + a.square().sum(-1))

    def matrix(self, a: Tensor, mask: Tensor | None, nugget: float = 0.0) -> Tensor:
        """K of examples, (S, n, n): padded ones are independent of all others.

        Args:
            a: (S, n, D).
            mask: (S, n), False where a row is padded; None where none is.
            nugget: variance that each example has for itself, as a part of the scale.
        """
        k, extra = self(a, a), a.new_full((), nugget * self.scale)
        if mask is not None:
            k = k * (mask[:, :, None] & mask[:, None, :])
            extra = torch.where(mask, extra, self.scale)
        return k + extra.expand(k.shape[:-1]).diag_embed()


def similar_rows(sizes: Sequence[int], device: torch.device) -> Iterator[list[int]]:
    """Rows of about the same size, the largest first, so that little is padded: time grows with the cube.

    Args:
        sizes: examples of each row.
        device: where they are worked on.
    """
    order = sorted(range(len(sizes)), key=lambda row: -sizes[row])
    per_pass = CUBES_PER_PASS.get(device.type, CUBES_PER_PASS_ELSEWHERE)
    for first, last in buckets([sizes[row] ** 3 for row in order], per_pass=per_pass):
        yield order[first:last]


def conditional(k: Tensor, cross: Tensor, prior: Tensor, kappa: Tensor, omega: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of f elsewhere, each example by itself: (..., S, m) both.

    Args:
        k: K, (S, n, n).
        cross: covariances with f elsewhere, (S, n, m).
        prior: variances there, (S, m).
        kappa, omega: the factors, (..., S, n).
    """
    root, factor = _system(k, omega)
    half = torch.linalg.solve_triangular(factor, root[..., None] * cross, upper=False)  # (..., S, n, m)
    target = torch.linalg.solve_triangular(factor, _over(kappa, root)[..., None], upper=False)
    mean = (half.mT @ target).squeeze(-1)
    return mean, (prior - half.square().sum(-2)).clamp_min(0)


def one_after_another(k: Tensor, y: Tensor, noise: float | Tensor) -> Normal:
    """p(y_i | y_1, ..., y_{i-1}) of each example i, whose product is the marginal likelihood N(y; 0, K + noise^2 I).

    Args:
        k: K, (S, n, n).
        y: (S, n).
        noise: standard deviation of y around f, a number, () or rows (S, 1).
    """
    noise = noise if isinstance(noise, float | int) else noise[..., None].to(k)
    factor = _cholesky(k + noise**2 * torch.eye(k.shape[-1], dtype=k.dtype, device=k.device))
    scale = factor.diagonal(dim1=-2, dim2=-1)
    standard = torch.linalg.solve_triangular(factor, y[..., None], upper=False).squeeze(-1)
    return Normal(y - scale * standard, scale)


def logistic_precisions(k: Tensor, sign: Tensor, noise: ClientNoise, site: str, steps: int) -> Tensor:
    """Draws of omega given labels: Gibbs chains of f | omega (Gaussian) and omega | f (Polya-Gamma), (D, S, n).

    Chains begin at the mean of PG(1, 0). Draws of a row depend on its own examples and noise alone.

    Args:
        k: K, (S, n, n).
        sign: of the labels, (S, n): 1 or -1, 0 for an example without one.
        noise: of the rows, D draws.
        site: which noise.
        steps: of each chain.
    """
    labelled, kappa, square = sign != 0, sign / 2, _cholesky(k)
    omega = (labelled / 4.0).to(k).expand(noise.particles, *sign.shape)
    numbers = noise.normal(site, sign.shape[-1], torch.Size((steps, 2 + NORMALS)))
    for of_f, of_data, of_omega in zip(
        numbers[..., 0].unbind(-1), numbers[..., 1].unbind(-1), numbers[..., 2:].unbind(-2), strict=True
    ):
        root, factor = _system(k, omega)
        # Matheron's rule: f of the prior, moved by the difference between the data and it
        f = _applied(square, of_f)
        apart = _over(kappa, root) - root * f - of_data
        f = f + _applied(k, root * torch.cholesky_solve(apart[..., None], factor).squeeze(-1))
        omega = polya_gamma(f, of_omega) * labelled
    return omega


def log_logistic(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """log E sigma(f) and log E sigma(-f), f ~ an equal mixture of D Gaussians.

    Args:
        mean, variance: (D, ...).
    """
    x, log_weight = (send(part, mean.device, mean.dtype) for part in _hermite())
    f = mean[..., None] + variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()[..., None] * x
    up, down = ((logsigmoid(s * f) + log_weight).logsumexp(-1) for s in (1, -1))
    number = math.log(len(mean))
    return up.logsumexp(0) - number, down.logsumexp(0) - number


def _system(k: Tensor, omega: Tensor) -> tuple[Tensor, Tensor]:
    """sqrt(omega), and the lower factor of I + sqrt(omega) K sqrt(omega)."""
    root = omega.sqrt()
    identity = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)
    factor, failed = torch.linalg.cholesky_ex(torch.addcmul(identity, root[..., :, None] * root[..., None, :], k))
    # NaN where there is no factor: there, D matrices need not be copied for it.
    return torch.where(failed[..., None] == 0, root, torch.nan), factor


def _applied(matrix: Tensor, vectors: Tensor) -> Tensor:
    """Each row's matrix (S, n, n) times all its draws (D, S, n), in one product: broadcast, D copies would be made."""
    return (matrix @ vectors.movedim(0, -1)).movedim(-1, 0)


def _cholesky(matrix: Tensor) -> Tensor:
    """The lower factor; NaN where there is none (torch would wait for the device to say so)."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    return torch.where((failed == 0)[..., None, None], factor, torch.nan)


def _over(kappa: Tensor, root: Tensor) -> Tensor:
    """kappa / root, 0 where nothing is known."""
    return kappa / torch.where(root > 0, root, 1.0)


@lru_cache
def _hermite() -> tuple[Tensor, Tensor]:
    """Points and log weights of Gauss-Hermite quadrature under N(0, 1); float64."""
    x, w = np.polynomial.hermite_e.hermegauss(POINTS)
    return torch.from_numpy(x), torch.from_numpy(np.log(w / w.sum()))
