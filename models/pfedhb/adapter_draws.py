"""Weighted draws of the posteriors of clients' low-rank changes: importance sampling at rising temperatures.

At temperature t the density is prior times likelihood^t. The first draws are the prior's, at t = 0. Each step raises t
as far as the weights of its draws allow, and takes the next draws from a normal with their weighted mean and
covariance. It is adaptive importance sampling (Cappé et al., 2008) at the temperatures of sequential Monte Carlo (Del
Moral, Doucet and Jasra, 2006).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .adapter_likelihood import Likelihood
from .adapter_modes import Mode

#: weights of a step are so even that at least this share of its draws is effective
EFFECTIVE = 0.1
#: steps of a row at most, and those among them that refine the normal at t = 1
STEPS, REFINED = 30, 2
#: halvings in the search for t
HALVINGS = 30
#: draws have one of these widths, in equal shares: weights need tails that are no lighter than the posterior's
WIDTHS = (1.05, 1.05, 1.05, 1.6)
#: least variance of a whitened number B / tau, whose prior has variance one
MIN_VARIANCE = 1e-9
#: log likelihood where it is not a number
LOG_IMPOSSIBLE = -1e100


@dataclass(frozen=True)
class Normals:
    """Mixtures of normals N(m, s_k^2 L L^T) of whitened numbers B / tau, one for each row.

    Attributes:
        mean: m, (S, d).
        root: L, lower triangular, (S, d, d).
        widths: all s_k, (K,), in equal shares.
    """

    mean: Tensor
    root: Tensor
    widths: Tensor

    @classmethod
    def prior(cls, like: Tensor) -> Normals:
        """Standard normals, one for each row of (M, S, d)."""
        rows, d = like.shape[1:]
        identity = torch.eye(d).to(like).expand(rows, d, d)
        return cls(like.new_zeros((rows, d)), identity, like.new_ones(len(WIDTHS)))

    @classmethod
    def around(cls, mode: Mode, tau: Tensor) -> Normals:
        """Laplace's approximation, and wider."""
        identity = torch.eye(len(tau)).to(tau)
        covariance = torch.cholesky_inverse(torch.linalg.cholesky(mode.scaled + identity))
        root = torch.linalg.cholesky(covariance)
        return cls(mode.b / tau, root, tau.new_tensor(WIDTHS))

    def fit(self, z: Tensor, weights: Tensor, rows: Tensor) -> Normals:
        """Fits some rows (S,) by mean and covariance of draws z (M, S, d) with weights (M, S)."""
        mean = (weights[..., None] * z).sum(0)
        centred = (z - mean).transpose(0, 1)
        covariance = centred.mT @ (weights.mT[..., None] * centred)
        root = torch.linalg.cholesky(covariance + MIN_VARIANCE * torch.eye(z.shape[-1]).to(z))
        mean, root = torch.where(rows[:, None], mean, self.mean), torch.where(rows[:, None, None], root, self.root)
        return Normals(mean, root, self.widths.new_tensor(WIDTHS))

    def drawn(self, e: Tensor) -> tuple[Tensor, Tensor]:
        """Whitened draws for pairs e, -e of standard normals (M, S, d), and their log density, (M, S).

        The density is that but for a constant of each row.
        """
        half = self.widths.repeat(-(-len(e) // (2 * len(self.widths))))[: len(e) // 2]
        e = e * torch.cat([half, half])[:, None, None]
        squares = e.square().sum(-1, keepdim=True) / self.widths.square()
        log_density = (-0.5 * squares - e.shape[-1] * self.widths.log()).logsumexp(-1)
        z = self.mean + (self.root @ e.permute(1, 2, 0)).permute(2, 0, 1)
        return z, log_density

    def squares(self) -> Tensor:
        """E z^2 of each number, (S, d)."""
        return self.mean.square() + self.widths.square().mean() * self.root.square().sum(-1)


@dataclass(frozen=True)
class Draws:
    """Draws and what their weights are made of.

    Attributes:
        z: whitened draws, (M, S, d).
        log_likelihood: of each, (M, S).
        log_ratio: log of the prior's density over that of the normals, but for a constant of each row, (M, S).
    """

    z: Tensor
    log_likelihood: Tensor
    log_ratio: Tensor

    @classmethod
    def draw(cls, likelihood: Likelihood, normals: Normals, e: Tensor) -> Draws:
        """Draws by the normals from standard normals e (M, S, d)."""
        z, log_density = normals.drawn(e)
        squares = 0.5 * z.square().sum(-1)
        log_likelihood = (likelihood.heights(z * likelihood.tau) + squares).nan_to_num(
            LOG_IMPOSSIBLE, neginf=LOG_IMPOSSIBLE
        )
        return cls(z, log_likelihood, -squares - log_density)

    def risen(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (M, S) of which enough are effective, and their temperature (S,), t or more.

        Where weights at t are too uneven, their logarithms are multiplied by a factor below one.
        """

        def weights(flattening: Tensor) -> tuple[Tensor, Tensor]:
            # From 0 to 1 the factor rises, from 1 to 2 the temperature does.
            factor, more = flattening.clamp_max(1), (flattening - 1).clamp_min(0)
            at = torch.lerp(t, torch.ones_like(t), more)
            return (factor * (at * self.log_likelihood + self.log_ratio)).softmax(0), at

        low, high = torch.zeros_like(t), torch.full_like(t, 2.0)
        flattening = high
        for _ in range(HALVINGS):
            enough = 1 / weights(flattening)[0].square().sum(0) >= EFFECTIVE * len(self.z)
            low, high = torch.where(enough, flattening, low), torch.where(enough, high, flattening)
            flattening = (low + high) / 2
        return weights(low)

    def weights(self) -> Tensor:
        """Those of the posterior, with a sum of one, (M, S)."""
        return (self.log_likelihood + self.log_ratio).softmax(0)


@dataclass(frozen=True)
class Posterior:
    """Weighted draws of each row's posterior.

    Attributes:
        b: B, (M, S, d).
        weights: with a sum of one, (M, S).
        squares: E B^2 / tau^2 of each number, (S, d): that of the normals, which is known, and the difference that
            weights make in the draws.
        highest: the draw of the highest density, (S, d).
        effective: how many draws of the posterior they are worth, (S,).
    """

    b: Tensor
    weights: Tensor
    squares: Tensor
    highest: Tensor
    effective: Tensor

    @classmethod
    def temper(
        cls, likelihood: Likelihood, noise: Callable[[str, int], Tensor], many: int, last: int, start: Normals | None
    ) -> Posterior:
        """Draws by steps that raise the temperature's inverse t to 1. What a row does depends on no other row.

        Args:
            likelihood: of the rows, with their tau.
            noise: standard normals (M, S, d) of a name, for M.
            many: draws of a step.
            last: draws in the end.
            start: normals near to the posterior; None for the prior, from which all modes are seen.
        """
        normals = start or Normals.prior(noise("a_j/0", many))
        t = normals.mean.new_full(normals.mean.shape[:1], float(start is not None))
        left = torch.full(t.shape, REFINED + (start is None), device=t.device)
        for step in range(STEPS):
            draws = Draws.draw(likelihood, normals, noise(f"a_j/{step}", many))
            weights, risen = draws.risen(t)
            moving = left > 0
            normals, t = normals.fit(draws.z, weights, moving), torch.where(moving, risen, t)
            left = left - (t == 1).long()
            if not bool((left > 0).any()):
                break
        draws = Draws.draw(likelihood, normals, noise("a_j/last", last))
        weights = draws.weights()
        change = torch.einsum("ms,msd->sd", weights - 1 / len(weights), draws.z.square())
        b, heights = draws.z * likelihood.tau, draws.log_likelihood - 0.5 * draws.z.square().sum(-1)
        highest = b.gather(0, heights.argmax(0)[None, :, None].expand(1, -1, b.shape[-1]))[0]
        return cls(b, weights, normals.squares() + change, highest, 1 / weights.square().sum(0))
