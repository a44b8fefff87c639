"""Laplace approximations around several modes of a client's low-rank changes: one mixture, and weights of its draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .adapter_likelihood import Likelihood

#: how often a step of Newton's is halved, and what it promises where it has arrived
HALVINGS, ARRIVED = 8, 1e-14
#: draws stay as they are where so few of them have all the weight
FEWEST = 2.0


@dataclass(frozen=True)
class Mode:
    """Where Newton's steps of some rows lead.

    Attributes:
        b: B, (S, d).
        height: log likelihood and log prior there, (S,).
        scaled: D^1/2 H D^1/2 with D = diag(tau)^2 and H the Gauss-Newton matrix of the log likelihood, (S, d, d).
    """

    b: Tensor
    height: Tensor
    scaled: Tensor

    @classmethod
    def climb(cls, likelihood: Likelihood, b: Tensor, steps: int, rounding: float, again: bool = False) -> Mode:
        """By steps with a line search.

        Args:
            likelihood: of the rows.
            b: where they begin.
            steps: at most.
            rounding: relative precision of the run, below which nothing is progress.
            again: whether height and curvature are taken after the last step; otherwise those before it stay.
        """
        tau = likelihood.tau
        identity = torch.eye(len(tau)).to(tau)
        height = scaled = tau.new_zeros(())
        for number in range(steps + again):
            height, gradient, h = likelihood.expanded(b)
            scaled = tau[:, None] * h * tau
            step = tau * torch.linalg.solve(scaled + identity, tau * gradient)
            promised = (gradient * step).sum(-1)
            if number == steps or bool((promised <= ARRIVED + rounding * height.abs()).all()):
                break
            length = torch.ones_like(height)
            for _ in range(HALVINGS):
                new = b + length[:, None] * step
                higher = likelihood.height(new)
                worse = ~(higher >= height)
                if not bool(worse.any()):
                    break
                length = torch.where(worse, length / 2, length)
            better = higher >= height
            b, height = torch.where(better[:, None], new, b), torch.where(better, higher, height)
        return cls(b, height, scaled)


@dataclass(frozen=True)
class Mixture:
    """Normals N(b_k, s^2 P_k^-1) of the same share each, around K modes, as one approximation of the posterior.

    Modes that are one and the same are one normal: nothing is lost by a start too many.

    Attributes:
        likelihood: of the rows.
        modes: at least one.
        scale: s; 1 is Laplace's approximation, and weights need tails that are no lighter than the posterior's.
    """

    likelihood: Likelihood
    modes: Sequence[Mode]
    scale: float = 1.0

    def highest(self) -> Mode:
        """Each row's highest mode."""
        heights = torch.stack([mode.height for mode in self.modes])
        which, rows = heights.argmax(0), torch.arange(heights.shape[1], device=heights.device)
        b, scaled = (torch.stack([getattr(mode, key) for mode in self.modes])[which, rows] for key in ("b", "scaled"))
        return Mode(b, heights[which, rows], scaled)

    def squares(self) -> Tensor:
        """E B^2 / tau^2 - 1 of each number, (S, d)."""
        means = [(mode.b / self.likelihood.tau).square() for mode in self.modes]
        variances = [1 - inside(mode).diagonal(dim1=-2, dim2=-1) for mode in self.modes]
        return torch.stack(means).mean(0) + self.scale**2 * torch.stack(variances).mean(0) - 1

    def drawn(self, normals: Sequence[Tensor]) -> Tensor:
        """As many draws around each mode as there are normals (m, S, d): (K m, S, d)."""
        scale = self.scale * self.likelihood.tau
        return torch.cat([
            mode.b + scale * torch.linalg.solve_triangular(_root(mode).mT, e[..., None], upper=True).squeeze(-1)
            for mode, e in zip(self.modes, normals, strict=True)
        ])  # fmt: skip

    def weights(self, drawn: Tensor) -> Tensor:
        """The posterior's density over the mixture's, of draws (M, S, d), with a sum of one: (M, S).

        They are equal where fewer than :data:`FEWEST` would have all the weight.
        """
        log_weights = self.likelihood.heights(drawn) - self._log_density(drawn)
        weights = log_weights.nan_to_num(-torch.inf).softmax(0)
        effective = 1 / weights.square().sum(0)
        return torch.where(effective > FEWEST, weights, 1 / len(drawn))

    def _log_density(self, drawn: Tensor) -> Tensor:
        """But for a constant of each row, (M, S)."""
        logs = []
        for mode in self.modes:
            root = _root(mode)
            e = torch.einsum("sed,mse->msd", root, (drawn - mode.b) / (self.scale * self.likelihood.tau))
            logs.append(root.diagonal(dim1=-2, dim2=-1).log().sum(-1) - 0.5 * e.square().sum(-1))
        return torch.stack(logs).logsumexp(0) - math.log(len(logs))


def half_as_good(d: int) -> float:
    """The scale s at which weighted draws of a normal posterior of d numbers are worth half as many of its own.

    The effective number is smaller by (1 + v^2 / (1 + 2 v))^(d/2) with s^2 = 1 + v.
    """
    r = 2 ** (2 / d) - 1
    return math.sqrt(1 + r + math.sqrt(r * r + r))


def inside(mode: Mode) -> Tensor:
    """(D^1/2 H D^1/2 + 1)^-1 D^1/2 H D^1/2, symmetric, (S, d, d): how much of the prior's variance data take away."""
    identity = torch.eye(mode.b.shape[1]).to(mode.b)
    return torch.linalg.solve(mode.scaled + identity, mode.scaled)


def _root(mode: Mode) -> Tensor:
    """L of D^1/2 P D^1/2 = L L^T, (S, d, d)."""
    return torch.linalg.cholesky(mode.scaled + torch.eye(mode.b.shape[1]).to(mode.b))
