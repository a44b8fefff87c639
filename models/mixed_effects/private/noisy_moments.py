"""Noisy sums of products of all clients, and their log density as a quadratic in the coefficients.

Of client j, with b = T beta and D = R L L^T R^T in the columns C, h_j = g_j - S_j^ b,

    g_j | S_j  ~  N(S_j b,  S_j D S_j + s^2 S_j + N_g)                                                      (p5)
    O_j = S_j^ D S_j^ + s^2 S_j^ + K_j,    K_j = N_g + sum_kl (b b^T + D)_kl cov(S_k, S_l | t)
    h ~ N(0, diag(O_j) + U U^T),           U_j = B_j b

and what the residual's sum of squares adds, given h: with m_j = O_j^-1 h_j,

    y^T y - 2 g^T b + b^T S^ b  =  RSS_j + e_j^T C S_j^-1 C^T e_j + noise                                   (p7)
    E[e^T C S^-1 C^T e | h]  =  |S^1/2 (s^2 + D S) m|^2 + tr((s^2 + D S) O^-1 K)

where RSS_j is s^2 chi^2 with n_j - c degrees of freedom, and the noise has a known variance and covariance with h.
K and U are functions of b: they are taken at its estimate given D and s, after :data:`STEPS` weighted regressions.
Without noise K = U = 0, and all of it is the likelihood of the rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from . import residual
from .latent import LatentProducts

#: weighted regressions before the coefficients that noise is multiplied by
STEPS = 3
#: coefficients of columns in [-1, 1] on a response in [-1, 1] multiply noise by no more than this
LARGEST = 10.0
#: of sums of products, added to a diagonal before it is inverted
DIAGONAL_JITTER = 1e-13


class Quadratic(NamedTuple):
    """-2 log density = volume + yy - 2 a^T beta + beta^T A beta, in a response scaled to [-1, 1].

    Attributes:
        a: A, (M, p, p).
        b: a, (M, p).
        yy: (M,).
        volume: (M,).
        matching: log of Jeffreys' density of log s, (M,), see :mod:`.residual`.
    """

    a: Tensor
    b: Tensor
    yy: Tensor
    volume: Tensor
    matching: Tensor


@dataclass(frozen=True)
class NoisyMoments:
    """What all clients have sent.

    Attributes:
        latent: of S_j.
        g: C^T y, noisy, (J, c).
        yy: y^T y, noisy, (J,).
        sd: of noise on a diagonal; beside it sd / sqrt 2.
        fixed: T over the response's half range, (c, p).
        random: R over it, (c, q).
    """

    latent: LatentProducts
    g: Tensor
    yy: Tensor
    sd: float
    fixed: Tensor
    random: Tensor

    @classmethod
    def from_noisy(cls, noisy: Tensor, sd: float, fixed: Tensor, random: Tensor) -> NoisyMoments:
        """Estimates moments from noisy sums of products of [C y], (J, c + 1, c + 1)."""
        c = noisy.shape[-1] - 1
        return cls(LatentProducts.from_noisy(noisy[:, :c, :c], sd), noisy[:, :c, c], noisy[:, c, c], sd, fixed, random)

    @property
    def c(self) -> int:
        """Columns."""
        return self.g.shape[1]

    def quadratic(self, covariance: Tensor, variance: Tensor) -> Quadratic:
        """The quadratic in the coefficients at some points.

        Args:
            covariance: L L^T of random effects, in the response's own units, (M, q, q).
            variance: s^2, of the scaled response, (M,).
        """
        spread = self.random @ covariance @ self.random.mT  # D
        clean, beta = self._clean(spread, variance), self.first.expand(len(variance), -1)
        for _ in range(STEPS):
            weighted = self._weighted(clean, spread, self._bounded(beta))
            beta = _solved(weighted.a, weighted.b)
        b = self._bounded(beta)
        weighted = self._weighted(clean, spread, b)
        left, degrees = self._left(spread, variance, b, weighted), self.latent.counts - self.c
        rows = residual.log_density(left[0], degrees, variance[:, None], left[1])
        volume = weighted.volume - 2 * rows.sum(-1) + self.constant
        matching = residual.log_matching(degrees, variance[:, None], left[1])
        return Quadratic(weighted.a, weighted.b, weighted.yy, volume, matching)

    @cached_property
    def first(self) -> Tensor:
        """Coefficients of least squares of all clients' sums, (p,)."""
        total = self.latent.mean.sum(0) + DIAGONAL_JITTER * self.latent.counts.sum() * torch.eye(self.c).to(self.g)
        return torch.linalg.lstsq(total @ self.fixed, self.g.sum(0)[:, None]).solution[:, 0]

    @cached_property
    def constant(self) -> Tensor:
        """What makes the density that of rows where there is no noise, ()."""
        s, n = self.latent.mean, self.latent.counts
        values = torch.linalg.eigvalsh(s)
        most = values.amax(-1, keepdim=True)
        volume = torch.where(values > DIAGONAL_JITTER * most, values, 1.0).log().sum(-1)
        explained = torch.einsum("ja,jab,jb->j", self.g, torch.linalg.pinv(s, hermitian=True), self.g)
        degrees = n - self.c
        log_constant = residual.log_constant((self.yy - explained).maximum(1e-6 * degrees), degrees)
        return (n * math.log(2 * math.pi) - volume + 2 * log_constant).sum()

    def _bounded(self, beta: Tensor) -> Tensor:
        """b, (M, c)."""
        return (beta @ self.fixed.mT).clamp(-LARGEST, LARGEST)

    def _noise(self, spread: Tensor, b: Tensor) -> Tensor:
        """K, (M, J, c, c)."""
        both = b[..., :, None] * b[..., None, :] + spread
        return self._spread_by(both) + self.sd**2 / 2 * torch.eye(self.c).to(b)

    def _spread_by(self, both: Tensor) -> Tensor:
        """sum_bd cov(S_ab, S_cd) (M, b, d) of each client, (M, J, a, c)."""
        return (both.flatten(1) @ self._spread_matrix).unflatten(1, (*self.latent.spread.shape[:2], self.c))

    @cached_property
    def _spread_matrix(self) -> Tensor:
        """(c c, J c c)."""
        return self.latent.spread.permute(2, 4, 0, 1, 3).flatten(0, 1).flatten(1)

    def _common(self, b: Tensor) -> Tensor:
        """U, (M, J, c, r - 1)."""
        shared = self.latent.shared
        return (b @ self._shared_matrix).unflatten(1, (*shared.shape[:2], shared.shape[-1]))

    @cached_property
    def _shared_matrix(self) -> Tensor:
        """(c, J c (r - 1))."""
        return self.latent.shared.movedim(2, 0).flatten(1)

    def _clean(self, spread: Tensor, variance: Tensor) -> Tensor:
        """O without K, (M, J, c, c)."""
        s = self.latent.mean
        least = DIAGONAL_JITTER * self.latent.counts[:, None, None] * torch.eye(self.c).to(s)
        return s @ spread[:, None] @ s + variance[:, None, None, None] * (s + least)

    def _weighted(self, clean: Tensor, spread: Tensor, b: Tensor) -> Weighted:
        """The regression of g on S^ T, (p5)."""
        s, k, u = self.latent.mean, self._noise(spread, b), self._common(b)
        root = root_of(clean + k)
        p, fixed = self.fixed.shape[1], (s @ self.fixed).expand(len(b), *s.shape[:2], -1)
        columns = torch.cat([fixed, self.g[..., None].expand(*fixed.shape[:3], 1), u], -1)
        white = torch.linalg.solve_triangular(root, columns, upper=False).flatten(1, 2)
        products = white.mT @ white
        inner = root_of(products[:, p + 1 :, p + 1 :] + torch.eye(u.shape[-1]).to(u))
        between = torch.linalg.solve_triangular(inner, products[:, p + 1 :, : p + 1], upper=False)
        left = products[:, : p + 1, : p + 1] - between.mT @ between
        volume = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum((-1, -2))
        volume = volume + 2 * inner.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return Weighted(left[:, :p, :p], left[:, :p, p], left[:, p, p], volume, root, k, u)

    def _left(self, spread: Tensor, variance: Tensor, b: Tensor, weighted: Weighted) -> tuple[Tensor, Tensor]:
        """RSS_j with noise, and the noise's variance, (M, J) each, (p7)."""
        s, noise_of_entry, common = self.latent.mean, self.sd**2 / 2, weighted.shared @ weighted.shared.mT
        identity, k = torch.eye(self.c).to(s), weighted.noise + common
        root = root_of(weighted.root @ weighted.root.mT + common)  # of one client, whatever others sent
        inverse = torch.cholesky_solve(identity.expand_as(root), root)
        columns = b[:, None, :, None]
        sb = s @ columns
        h = self.g[..., None] - sb
        m = inverse @ h
        f = variance[:, None, None, None] * identity + spread[:, None] @ s
        v = f @ m
        projected = (v * (s @ v)).sum((-2, -1)) + ((f @ inverse) * k.mT).sum((-2, -1))
        total_spread = self._spread_by(b[:, :, None] * b[:, None]) + common
        along_b = total_spread @ columns
        with_h = -along_b - 2 * noise_of_entry * columns
        noise = (along_b * columns).sum((-2, -1)) + (4 * noise_of_entry * b.square().sum(-1) + self.sd**2)[:, None]
        noise = noise - (with_h * (inverse @ with_h)).sum((-2, -1))
        squares = self.yy - ((2 * self.g[..., None] - sb) * columns).sum((-2, -1))
        left = squares - (with_h * m).sum((-2, -1)) - projected
        return left, noise.clamp_min(torch.finfo(noise.dtype).tiny ** 0.25)


class Weighted(NamedTuple):
    """A weighted regression: as :class:`Quadratic`, and the root of O, K and U."""

    a: Tensor
    b: Tensor
    yy: Tensor
    volume: Tensor
    root: Tensor
    noise: Tensor
    shared: Tensor


def _solved(a: Tensor, b: Tensor) -> Tensor:
    scale = a.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    jitter = DIAGONAL_JITTER * scale * torch.eye(a.shape[-1]).to(a)
    return torch.linalg.solve(a + jitter, b[..., None])[..., 0]


def root_of(matrix: Tensor) -> Tensor:
    """A lower root (..., n, n), in units of the diagonal; not a number where there is none."""
    unit = matrix.diagonal(dim1=-2, dim2=-1).clamp_min(torch.finfo(matrix.dtype).tiny).sqrt()
    scaled = matrix / (unit[..., None] * unit[..., None, :]) + DIAGONAL_JITTER * torch.eye(matrix.shape[-1]).to(matrix)
    root, failed = torch.linalg.cholesky_ex(scaled)
    return torch.where(failed[..., None, None] > 0, torch.nan, root) * unit[..., None]
