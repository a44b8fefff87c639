"""Binary responses: rounds of noisy scores and information, as pseudo-data with known noise.

In round t client j's linear predictor is eta_i = c_i^T b_j^t. It sends, with noise, of its rows

    S_j = sum_i w_i c_i c_i^T,    s_j = sum_i c_i r_i,    r_i = d log p / d eta,    w_i its expected curvature   (p9)

each row clipped to |(w_i |c_i|^2, r_i |c_i|, a)| <= its bound. Around b_j^t, with b = T beta and u_j in the columns C,

    s_j  ~  N(S_j (b + u_j - b_j^t), S_j + N_s),    u_j ~ N(0, D)                                          (p10)
    h_j = s_j + S_j^ b_j^t - S_j^ b  ~  N(0, S_j^ D S_j^ + S_j^ + K_j)
    K_j = N_s + sum_kl (P_j + d_j d_j^T)_kl cov(S_k, S_l | t),    d_j = b + E[u_j | h_j] - b_j^t

P_j is the covariance of u_j given h_j. S_j multiplies b + u_j - b_j^t alone, which is small: what is not known of S_j
matters little. The next point is

    b_j^{t+1} = T beta + D S_j (S_j D S_j + S_j + N_s)^-1 (s_j - S_j (T beta - b_j^t))                     (p11)

by the noisy message itself, so that client and server both know it and no budget is spent. In (p11) beta is shrunk by a
normal prior: a first round with much noise must not lead to where no row has information. Estimates are not shrunk.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from .latent import LatentProducts
from .noisy_moments import DIAGONAL_JITTER, STEPS, NoisyMoments, Quadratic, _solved

#: shares of the budget: later rounds are nearer to the estimates
SHARES = (0.15, 0.2, 0.25, 0.4)
#: by what the count of rows is multiplied: it is reported, and nothing else
COUNTED = 0.3
#: standard deviation of coefficients of columns in [-1, 1] about zero, for points alone: estimates know no such prior
USUAL = 1.5
#: coefficients of columns in [-1, 1] at a point, in absolute value at most: early rounds are noisy
LARGEST = 4.0


@dataclass(frozen=True)
class WorkingMoments(NoisyMoments):
    """Moments of a working response; see :class:`.noisy_moments.NoisyMoments`.

    g is s_j + S_j^ b_j, yy is zero, fixed and random are T and R. Noise has the standard deviation ``sd`` on s_j, too.

    Attributes:
        points: b_j, (J, c).
    """

    points: Tensor = field(default_factory=lambda: torch.zeros(0))

    @classmethod
    def around(
        cls, information: Tensor, scores: Tensor, points: Tensor, sd: float, fixed: Tensor, random: Tensor
    ) -> WorkingMoments:
        """Estimates moments from noisy messages of points (J, c): information (J, c, c) and scores (J, c)."""
        latent = LatentProducts.from_noisy(information, sd)
        g = scores + torch.einsum("jab,jb->ja", latent.mean, points)
        return cls(latent, g, torch.zeros(len(g)).to(g), sd, fixed, random, points)

    def quadratic(self, covariance: Tensor, variance: Tensor) -> Quadratic:
        """The quadratic at covariances (M, q, q); the variance is 1."""
        spread = self.random @ covariance @ self.random.mT
        clean = self._clean(spread, variance)
        moments = self._weighted(clean, spread, spread.new_zeros(len(spread), self.c))
        for _ in range(STEPS - 1):
            moments = self._weighted(clean, spread, _solved(moments.a, moments.b) @ self.fixed.mT)
        return Quadratic(moments.a, moments.b, moments.yy, moments.volume, torch.zeros_like(moments.volume))

    def _apart(self, spread: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """d_j = b + E[u_j | h_j] - b_j, (M, J, c), zero before b is known; and P_j, (M, J, c, c)."""
        s, identity = self.latent.mean, torch.eye(self.c).to(self.g)
        ds = spread[:, None] @ s
        clean = s @ ds + s + (self.sd**2 + DIAGONAL_JITTER) * identity
        left = spread[:, None] - ds @ torch.linalg.solve(clean, ds.mT)
        h = self.g - torch.einsum("jab,mb->mja", s, b)
        effect = (ds @ torch.linalg.solve(clean, h[..., None]))[..., 0]
        has_estimate = (b != 0).any(-1)[:, None, None]
        return torch.where(has_estimate, b[:, None] + effect - self.points, 0.0), left

    def _noise(self, spread: Tensor, b: Tensor) -> Tensor:
        """K, (M, J, c, c)."""
        apart, left = self._apart(spread, b)
        both = left + apart[..., :, None] * apart[..., None, :]
        noise = self.sd**2 * torch.eye(self.c).to(self.g)
        # What is common to clients is counted as each one's own.
        return torch.einsum("jabcd,mjbd->mjac", self._errors, both) + noise

    @cached_property
    def _errors(self) -> Tensor:
        """Covariance of S_j's entries given all messages, (J, c, c, c, c)."""
        return self.latent.spread + torch.einsum("jabr,jcdr->jabcd", self.latent.shared, self.latent.shared)

    def _common(self, b: Tensor) -> Tensor:
        """Nothing: it multiplies what is small."""
        return b.new_zeros(len(b), len(self.g), self.c, 1)


def next_point(
    information: Tensor, scores: Tensor, point: Tensor, middle: Tensor, spread: Tensor, noise: float
) -> Tensor:
    """b_j of the next round, (S, c), (p11).

    Args:
        information: as it was sent, (S, c, c).
        scores: likewise, (S, c).
        point: where, (S, c).
        middle: T beta, (c,).
        spread: D, (c, c).
        noise: variance of a score's noise.
    """
    values, vectors = torch.linalg.eigh(information)
    s = vectors @ torch.diag_embed(values.clamp_min(0)) @ vectors.mT
    middle = middle.clamp(-LARGEST, LARGEST)
    h = scores - torch.einsum("jab,jb->ja", s, middle - point)
    both = s @ spread @ s + s + (noise + DIAGONAL_JITTER) * torch.eye(len(middle)).to(s)
    point_next: Tensor = middle + torch.einsum(
        "ab,jb->ja", spread, (s @ torch.linalg.solve(both, h[..., None]))[..., 0]
    )
    return point_next


def longest(squares: float) -> float:
    """The largest norm of a row's part of a message, with |c|^2 <= ``squares``: |r| = p and w = p (1 - p) of some p."""
    p = torch.linspace(0, 1, 2001).double()
    squared = (p * (1 - p)).square() * squares**2 + p.square() * squares
    return float((squared.max() * (1 + 1e-6) + COUNTED**2).sqrt())
