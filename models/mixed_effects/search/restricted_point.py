"""One point of the search for restricted estimates: what is known there, with the coefficients integrated out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..model.arithmetic import IMPOSSIBLE
from .climb import eigen

#: least curvature of theta in units of its diagonal, where standard errors of coefficients are made of it
LEAST_CURVATURE = 0.05


@dataclass(frozen=True)
class Point:
    """What is known at one point, theta first.

    Attributes:
        at: the numbers, (k,).
        height: l_R there, ().
        penalty: -log |I| / 2 there, ().
        gradient: of l, (k,).
        curvature: minus the second derivatives of l, (k, k).
        t: numbers of theta.
    """

    at: Tensor
    height: Tensor
    penalty: Tensor
    gradient: Tensor
    curvature: Tensor
    t: int

    @classmethod
    def from_derivatives(cls, at: Tensor, height: Tensor, gradient: Tensor, curvature: Tensor, p: int) -> Point | None:
        """None where the coefficients have no information.

        Args:
            at: the numbers, (k,).
            height, gradient, curvature: of the log likelihood there.
            p: coefficients, the last ones of the numbers.
        """
        t = len(at) - p
        factor, failed = torch.linalg.cholesky_ex(curvature[t:, t:])
        if int(failed) or not bool(height > 0.5 * IMPOSSIBLE) or not bool(gradient.isfinite().all()):
            return None
        penalty = -factor.diagonal().log().sum()
        gain = 0.5 * torch.linalg.solve_triangular(factor, gradient[t:, None], upper=False).square().sum()
        return cls(at, height + gain + penalty, penalty, gradient, curvature, t)

    @property
    def follows(self) -> Tensor:
        """d beta(theta) / d theta, (p, t)."""
        return -torch.linalg.solve(self.curvature[self.t :, self.t :], self.curvature[self.t :, : self.t])

    @property
    def profile(self) -> tuple[Tensor, Tensor]:
        """Gradient (t,) and curvature (t, t) of l(theta, beta(theta))."""
        follows = self.follows
        return (
            self.gradient[: self.t] + follows.T @ self.gradient[self.t :],
            self.curvature[: self.t, : self.t] + self.curvature[: self.t, self.t :] @ follows,
        )

    def moved(self, step: Tensor) -> Tensor:
        """The numbers (k,) a step (t,) away, coefficients with them."""
        rest = torch.linalg.solve(self.curvature[self.t :, self.t :], self.gradient[self.t :])
        return self.at + torch.cat([step, rest + self.follows @ step])


def covariance(point: Point) -> Tensor:
    """The covariance of all numbers, (k, k): given theta coefficients have the inverse of their information, and
    follow it.
    """
    root = _root(point.profile[1])
    both = torch.cat([root, point.follows @ root])
    given = torch.zeros_like(point.curvature)
    given[point.t :, point.t :] = _given(point)
    return given + both @ both.T


def changes(point: Point, bend: Tensor, turning: Tensor) -> Tensor:
    """How the coefficients' covariance I^-1 changes along orthogonal directions of theta, (t, p, p).

    Each direction is one standard error of the restricted estimates long.

    Args:
        point: where.
        bend: second derivatives of the penalty, (t, t).
        turning: the slope of I, (t, p, p).
    """
    inverse = _given(point)
    return -inverse @ torch.einsum("ti,tpq->ipq", _root(point.profile[1] - bend), turning) @ inverse


def _given(point: Point) -> Tensor:
    """Covariance of the coefficients at theta, I^-1, (p, p)."""
    inverse: Tensor = torch.linalg.inv_ex(point.curvature[point.t :, point.t :]).inverse
    return inverse


def _root(curvature: Tensor) -> Tensor:
    """A root (t, t) of the curvature's inverse.

    The likelihood's own curvature may be flat at the restricted estimates, which are not its maximum.
    """
    values, vectors, scale = eigen(curvature)
    return vectors / scale[:, None] / values.abs().clamp_min(LEAST_CURVATURE).sqrt()
