"""The climb of a Gaussian guide and of the skews and tails of its marginals, together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from ..guide import SETTLED, UNSURE_STEP, Climb
from .expected import Metric
from .transform import MOST_SKEW, MOST_TAIL

#: the longest step of a skew or tail, and of what it comes to in standard deviations of the guide
LONGEST, FARTHEST = 0.5, 1.0
#: relative to its diagonal, what is added to the metric's
RIDGE = 1e-6


@dataclass(frozen=True)
class ShapedCurvature:
    """What is known at a guide beside the gradient by the mean.

    Attributes:
        matrix: A, the curvature by the numbers x of the guide, (p, p).
        gradient: of the bound by skews and tails, (2 p,), what the Gaussian takes back with them.
        metric: of these.
        free: which are not fixed, (2 p,) of bool.
    """

    matrix: Tensor
    gradient: Tensor
    metric: Metric
    free: Tensor

    def isfinite(self) -> Tensor:
        """Whether numbers are finite, one after the other."""
        return torch.cat([values.flatten().isfinite() for values in (self.matrix, self.gradient, self.metric.matrix)])

    def step(self, shape: Tensor) -> Tensor:
        """The natural-gradient step from skews and tails ``shape``, (2, p), cut to what is allowed."""
        turn = torch.zeros_like(self.gradient)
        if bool(self.free.any()):
            metric = self.metric.matrix[self.free][:, self.free]
            unit = metric.diagonal().rsqrt()
            scaled = metric * unit[:, None] * unit + RIDGE * torch.eye(len(unit)).to(unit)
            whole = torch.linalg.solve(scaled, unit * self.gradient[self.free])
            far = torch.maximum(whole.abs().max() / FARTHEST, (unit * whole).abs().max() / LONGEST)
            turn[self.free] = unit * whole / far.clamp_min(1)
        most = shape.new_tensor([[MOST_SKEW], [MOST_TAIL]])
        return (shape + turn.view_as(shape)).clamp(-most, most) - shape


@dataclass(frozen=True)
class ShapedClimb(Climb):
    """See :class:`..guide.Climb`.

    Attributes:
        shape: skews and tails of the best guide, (2, p).
        turn: their step, (2, p).
    """

    shape: Tensor
    turn: Tensor

    @classmethod
    def begin(cls, mean: Tensor, precision: Tensor, within: float = SETTLED) -> Self:
        """The state before the first round: no skew, no tail."""
        none = mean.new_zeros(2, len(mean))
        return cls(**vars(Climb.begin(mean, precision, within)), shape=none, turn=none)

    @property
    def tried(self) -> Tensor:
        """Skews and tails of the guide that is tried, (2, p)."""
        return self.shape + self.share * self.turn

    def towards(self, old: Tensor, curvature: ShapedCurvature) -> Tensor:
        """The precision that is asked for, from ``old``."""
        return super().towards(old, curvature.matrix)

    def after(self, bound: Tensor, gradient: Tensor, curvature: Any, *, exact: bool, numbers: float) -> Self:
        """Updates the state at the guide that was tried; see :meth:`..guide.Climb.after`."""
        made = super().after(bound, gradient, curvature, exact=exact, numbers=numbers)
        if made.mean is not self.mean:
            shape = self.tried
            return replace(made, shape=shape)._turned(curvature.step(shape), curvature.metric)
        return replace(made, turn=torch.zeros_like(self.turn)) if made.share is self.share else made

    def damped(self, gradient: Tensor, curvature: Any, share: float = UNSURE_STEP) -> Self:
        """Takes a share of the step after a round in which a client is missing."""
        made, shape = super().damped(gradient, curvature, share), self.tried
        return replace(made, shape=shape)._turned(curvature.step(shape), curvature.metric)

    def _turned(self, turn: Tensor, metric: Metric) -> Self:
        """The climb with a step of skews and tails, less what the Gaussian's own step does as well."""
        offset, stretch = ((matrix.view_as(turn) * turn).sum(0) for matrix in (metric.offset, metric.stretch))
        wider = (1 + stretch).clamp(0.5, 2)
        return replace(
            self, turn=turn, step=self.step - offset, target=self.target * wider[:, None] * wider
        )  # fmt: skip

    @property
    def moved(self) -> float:
        """How far the last step moved from the best guide: as in :class:`..guide.Climb`, or a skew or tail."""
        turned = float(self.turn.abs().max()) if self.turn.numel() else 0.0
        return max(super().moved, turned)
