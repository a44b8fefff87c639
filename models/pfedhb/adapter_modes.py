"""Modes of the posterior of a client's low-rank changes, and Laplace's approximation around one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .adapter_likelihood import Likelihood

#: how often a step of Newton's is halved, and what it promises where it has arrived
HALVINGS, ARRIVED = 8, 1e-14


@dataclass(frozen=True)
class Mode:
    """The modes of some rows, by Newton's steps.

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
        """Climbs by Newton's steps with a line search.

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
            arrived = (gradient * step).sum(-1) <= ARRIVED + rounding * height.abs()
            if number == steps or bool(arrived.all()):
                break
            step = torch.where(
                arrived[:, None], 0.0, step
            )  # else a row would depend on those that it shares a plate with
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

    @classmethod
    def higher(cls, mode: Mode, other: Mode) -> Mode:
        """Each row's higher one of two."""
        first = mode.height >= other.height
        return cls(
            torch.where(first[:, None], mode.b, other.b),
            torch.where(first, mode.height, other.height),
            torch.where(first[:, None, None], mode.scaled, other.scaled),
        )

    def squares(self, tau: Tensor) -> Tensor:
        """E B^2 / tau^2 of each number under Laplace's approximation, (S, d)."""
        return (self.b / tau).square() + 1 - inside(self).diagonal(dim1=-2, dim2=-1)

    def drawn(self, tau: Tensor, normals: Tensor) -> Tensor:
        """Draws of Laplace's approximation for standard normals (M, S, d)."""
        identity = torch.eye(self.b.shape[1]).to(self.b)
        root = torch.linalg.cholesky(self.scaled + identity)
        return self.b + tau * torch.linalg.solve_triangular(root.mT, normals[..., None], upper=True).squeeze(-1)


def inside(mode: Mode) -> Tensor:
    """(D^1/2 H D^1/2 + 1)^-1 D^1/2 H D^1/2, symmetric, (S, d, d): how much of the prior's variance data take away."""
    identity = torch.eye(mode.b.shape[1]).to(mode.b)
    return torch.linalg.solve(mode.scaled + identity, mode.scaled)
