"""Transforms of gradients: general mechanisms for methods with one term more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ..state import State

#: values by name -> gradient of the rows' losses there, {name: (S, 1, *shape)}, on one of an iteration's minibatches
GradientAt = Callable[[Mapping[str, Tensor], int], State]


class GradientTransform(Protocol):
    """Replaces the gradient of the rows' losses by the direction of a step."""

    @property
    def batches(self) -> int:
        """How many minibatches an iteration uses.

        One that takes two gradients of a minibatch has ``gradients`` beside it, how many it takes: each has noise of
        its own in a fit with noise, and epsilon is of all of them.
        """
        ...

    def __call__(self, gradient: GradientAt, at: State, values: Mapping[str, Tensor]) -> State:
        """What the optimiser is given for a gradient, {name: (S, 1, *shape)}.

        Args:
            gradient: of the losses (minus the ELBO, divided as SVI's ``per`` says) at any values.
            at: what is trained, as it is.
            values: everything that the rows see.
        """
        ...


@dataclass(frozen=True)
class ControlVariate:
    """The gradient and a difference of other values: g + plus - minus (a control variate; SCAFFOLD).

    Args:
        trained: the value that is trained.
        plus, minus: values of the same shape, shared or personal.
    """

    trained: str
    plus: str
    minus: str
    batches: ClassVar[int] = 1

    def __call__(self, gradient: GradientAt, at: State, values: Mapping[str, Tensor]) -> State:
        """See the class."""
        slopes = gradient(at, 0)
        return {**slopes, self.trained: slopes[self.trained] + values[self.plus] - values[self.minus]}


@dataclass(frozen=True)
class Clipped:
    """A gradient that is longer than this is shortened to it, each row's by itself (Pascanu et al., ICML 2013).

    Args:
        norm: of all that is trained together.
    """

    norm: float
    batches: ClassVar[int] = 1

    def __call__(self, gradient: GradientAt, at: State, values: Mapping[str, Tensor]) -> State:
        """See the class."""
        slopes = gradient(at, 0)
        squares = sum(g.flatten(1).square().sum(1) for g in slopes.values())
        assert isinstance(squares, Tensor)
        by = (self.norm / squares.sqrt().clamp_min(self.norm)).to(squares)
        return {k: g * by.view(-1, *[1] * (g.dim() - 1)) for k, g in slopes.items()}


@dataclass(frozen=True)
class Preconditioned:
    """The gradient of a value times another value, number by number.

    Args:
        trained: the value that is trained.
        by: one of the same shape, shared or personal, or that a step before has put beside the rows' values.
    """

    trained: str
    by: str
    batches: ClassVar[int] = 1

    def __call__(self, gradient: GradientAt, at: State, values: Mapping[str, Tensor]) -> State:
        """See the class."""
        slopes = gradient(at, 0)
        return {**slopes, self.trained: slopes[self.trained] * values[self.by]}


@dataclass(frozen=True)
class MetaGradient:
    """The gradient of the loss that is left after one step of gradient descent: (I - a H(w)) g(w - a g(w)).

    The Hessian's product with a vector v is the difference (g(w + d v) - g(w - d v)) / 2 d. The gradients are of three
    minibatches, both ends of the difference of the third one (Per-FedAvg, HF; Fallah et al., NeurIPS 2020, Eq. 8 and
    Alg. 1).

    Args:
        step: a, the length of the inner step.
        difference: d.
    """

    step: float
    difference: float
    batches: ClassVar[int] = 3
    gradients: ClassVar[int] = 4

    def __call__(self, gradient: GradientAt, at: State, values: Mapping[str, Tensor]) -> State:
        """See the class."""

        def moved(by: float, direction: State) -> State:
            return {k: torch.add(w, direction[k], alpha=by) for k, w in at.items()}

        v = gradient(moved(-self.step, gradient(at, 0)), 1)
        above, below = gradient(moved(self.difference, v), 2), gradient(moved(-self.difference, v), 2)
        return {k: v[k] - self.step / (2 * self.difference) * (above[k] - below[k]) for k in at}
