"""Likelihoods: what is between a network's output and the response."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from pyro.distributions import Normal, TorchDistribution
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import cross_entropy

#: the parameter that is a regression's learned standard deviation, in units of the training responses' own
RESPONSE_SD = "response_sd"
#: whose a learned standard deviation is: all clients', or each client's own
Learned = Literal["shared", "clients"]


class Softmax(TorchDistribution):
    """Categorical over classes given logits, with a log density that is one fused cross-entropy.

    The same distribution as ``Categorical(logits=logits)``, which normalises and gathers in several passes.

    Args:
        logits: (*batch, classes).
    """

    arg_constraints = {"logits": constraints.real_vector}  # noqa: RUF012
    has_enumerate_support = False

    def __init__(self, logits: Tensor, validate_args: bool | None = None) -> None:
        self.logits = logits
        super().__init__(logits.shape[:-1], torch.Size(), validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """0..classes-1."""
        return constraints.integer_interval(0, self.logits.shape[-1] - 1)

    @property
    def log_probs(self) -> Tensor:
        """Normalised log probabilities, (*batch, classes)."""
        return _over_classes(torch.log_softmax, self.logits)

    @property
    def probs(self) -> Tensor:
        """Probabilities, (*batch, classes)."""
        return _over_classes(torch.softmax, self.logits)

    def expand(self, batch_shape: torch.Size, _instance: object = None) -> Softmax:
        """The same distribution over a larger batch shape."""
        batch_shape = torch.Size(batch_shape)
        if batch_shape == self.batch_shape:
            return self
        return Softmax(self.logits.expand((*batch_shape, self.logits.shape[-1])), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p(value), broadcast over the batch."""
        if self._validate_args:
            self._validate_sample(value)
        logits, shape = self.logits, self.batch_shape
        if value.shape != shape:
            if value.shape != shape[len(shape) - value.dim() :]:
                shape = torch.broadcast_shapes(value.shape, shape)
            logits, value = logits.expand((*shape, logits.shape[-1])), value.expand(shape)
        if not shape:
            return -cross_entropy(logits, value.long())
        # Classes come before examples: on a CPU, torch is eight times slower along a short last dimension.
        by_class = logits.transpose(-1, -2)
        order = _as_they_lie(logits)
        by_class, value = by_class.permute(order), value.permute(order[:-1])
        rows, (classes, n) = math.prod(value.shape[:-1]), by_class.shape[-2:]
        losses = cross_entropy(by_class.reshape(rows, classes, n), value.long().reshape(rows, n), reduction="none")
        return -_back(losses.reshape(value.shape), order[:-1])

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """Labels, from torch's global generator."""
        return torch.distributions.Categorical(logits=self.logits, validate_args=False).sample(sample_shape)


def _over_classes(function: Callable[[Tensor, int], Tensor], logits: Tensor) -> Tensor:
    """A function along the last dimension, with classes before examples as in :meth:`Softmax.log_prob`."""
    if logits.dim() < 2:
        return function(logits, -1)
    order = _as_they_lie(logits)
    return _back(function(logits.transpose(-1, -2).permute(order), -2), order).transpose(-1, -2)


def _as_they_lie(logits: Tensor) -> list[int]:
    """An order of all dimensions that leaves the last two in place, and the others as they lie in memory."""
    batch = sorted(range(logits.dim() - 2), key=logits.stride, reverse=True)
    return [*batch, logits.dim() - 2, logits.dim() - 1]


def _back(x: Tensor, order: list[int]) -> Tensor:
    """Undoes ``x.permute(order)``."""
    return x.permute([order.index(k) for k in range(len(order))])


def gaussian(output: Tensor, noise: float | Tensor) -> Normal:
    """N(output, noise^2) for a network with one output, (..., 1); noise is a number, () or rows (S, 1)."""
    scale = noise if isinstance(noise, Tensor) else output.new_full((), noise)
    return Normal(output.squeeze(-1), scale)
