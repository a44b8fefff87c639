"""Newton's method to a maximum, one point a round: a step is kept only if it has gone up.

At a point the height f, gradient g and curvature C (minus the second derivatives) are known. In units of C's diagonal,
about standard errors, the step is |C|^-1 g, with the eigenvalues' absolute values. It is no longer than a radius, which
grows where f follows its derivatives, and shrinks where it does not (Nocedal and Wright, 2006, 4).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from hierfl.inference.server.explored import NO_HEIGHT
from hierfl.inference.state import State

from ..model.arithmetic import IMPOSSIBLE

#: the radius to begin with, in standard errors, and at most
FIRST_RADIUS, LARGEST_RADIUS = 5.0, 1e3
#: the longest step of a logarithm and the like
LONGEST = 2.0
#: curvature below this share of its diagonal is none
MIN_CURVATURE_SHARE = 1e-10
#: how far a point of which nothing is known is from a maximum: a number, since a server's memory
#: holds nothing else
INFINITE_LENGTH = 1e9
#: a step that has lost less than this, relative to the height, has lost nothing but digits
ROUNDING = 1e-12


@dataclass(frozen=True)
class Climb:
    """State of a climb.

    Attributes:
        best: the highest point so far, (k,).
        height: there, ().
        gradient: there, (k,).
        curvature: there, (k, k).
        radius: of the next step, ().
        next: the next point, (k,).
        to_go: the length of Newton's step in standard errors, (); :data:`INFINITE_LENGTH` where the curvature
            is no maximum's.
        rounds: number of points so far, ().
        longest: the longest step of each number, (k,).
    """

    best: Tensor
    height: Tensor
    gradient: Tensor
    curvature: Tensor
    radius: Tensor
    next: Tensor
    to_go: Tensor
    rounds: Tensor
    longest: Tensor

    @classmethod
    def begin(cls, at: Tensor, longest: Tensor) -> Climb:
        """The state before the first round."""
        k, unit = len(at), at.new_ones(())
        return cls(
            at, unit * NO_HEIGHT, torch.zeros_like(at), at.new_zeros(k, k), unit * FIRST_RADIUS, at,
            unit * INFINITE_LENGTH, unit * 0,
            longest,
        )  # fmt: skip

    @classmethod
    def read(cls, state: State) -> Climb:
        """What :meth:`state` has written."""
        return cls(**{f.name: state[f"climb.{f.name}"] for f in fields(cls)})

    def state(self) -> State:
        """All of it by name."""
        return {f"climb.{f.name}": getattr(self, f.name) for f in fields(self)}

    def updated(
        self, height: Tensor, gradient: Tensor, curvature: Tensor, digits: float = ROUNDING, *, trusted: bool = False
    ) -> Climb:
        """Updates the state with derivatives at :attr:`next`: heights are known to ``digits``, relative to themselves.

        ``trusted`` marks a point that another kind of step has led to. If the height has risen there, the radius is the
        first one again.
        """
        finite = bool((height > 0.5 * IMPOSSIBLE) & gradient.isfinite().all() & curvature.isfinite().all())
        first = bool(self.height == NO_HEIGHT)
        gained = height - self.height
        least = digits * (1 + self.height.abs())
        kept = finite and (first or bool(gained >= -least))
        radius = self.radius
        if trusted and kept:
            radius = torch.full_like(radius, FIRST_RADIUS)
        elif not first:
            step = self.next - self.best
            promised = self.gradient @ step - 0.5 * step @ self.curvature @ step
            ratio = float(gained / promised) if finite and bool(promised > least) else 1.0 if kept else -1.0
            length = self._length(step, self.curvature)
            if not kept or ratio < 0.25:
                radius = 0.25 * torch.minimum(radius, length)
            elif ratio > 0.75 and bool(length > 0.9 * radius):
                radius = (3 * radius).clamp(max=LARGEST_RADIUS)
        best, f, g, c = (
            (self.next, height, gradient, curvature)
            if kept
            else (self.best, self.height, self.gradient, self.curvature)
        )
        step, to_go = newton_step(g, c, radius)
        step = step / (step.abs() / self.longest).max().clamp_min(1.0) if len(step) else step
        return Climb(best, f, g, c, radius, best + step, to_go, self.rounds + 1, self.longest)

    @staticmethod
    def _length(step: Tensor, curvature: Tensor) -> Tensor:
        """A step's length in standard errors."""
        values, vectors, scale = eigen(curvature)
        components = vectors.mT @ (step * scale)
        return (components.square() * values.abs()).sum().sqrt()

    def arrived(self, tol: float) -> bool:
        """Whether Newton's step to go is shorter than ``tol`` standard errors, from a maximum."""
        return bool(self.to_go < tol)


def eigen(curvature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues (k,) and vectors (k, k) of a curvature in units of its diagonal, whose roots are the scale (k,)."""
    diagonal = curvature.diagonal().abs()
    scale = torch.where(diagonal > 0, diagonal, 1.0).sqrt()
    values, vectors = torch.linalg.eigh(curvature / (scale[:, None] * scale))
    return values, vectors, scale


def newton_step(g: Tensor, curvature: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """The step (k,), and the length in standard errors of Newton's own, infinite where no maximum is near.

    Along a flat direction without a gradient nothing moves.
    """
    if not len(g):
        return g, g.new_zeros(())
    values, vectors, scale = eigen(curvature)
    components = vectors.mT @ (g / scale)
    flat = values.abs() < MIN_CURVATURE_SHARE
    bent = torch.where(flat, MIN_CURVATURE_SHARE, values.abs())
    move = torch.where(flat & (components.abs() < MIN_CURVATURE_SHARE), 0.0, components / bent)
    length = (move.square() * bent).sum().sqrt()
    step = (vectors @ (move * (radius / length.maximum(radius)))) / scale
    return step, torch.where((values > -MIN_CURVATURE_SHARE).all(), length, INFINITE_LENGTH)


def spread(curvature: Tensor) -> Tensor:
    """A lower triangular root (k, k) of the curvature's inverse, whose eigenvalues are taken positive."""
    values, vectors, scale = eigen(curvature)
    root = vectors * values.abs().clamp_min(1e-4).rsqrt() / scale[:, None]
    return torch.linalg.qr(root.mT).R.mT * torch.linalg.qr(root.mT).R.diagonal().sign()
