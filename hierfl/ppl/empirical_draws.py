"""The draws that chains have kept, as a guide."""

from __future__ import annotations

from typing import ClassVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from ..shapes import broadcast_shapes


class EmpiricalDraws(TorchDistribution):
    """Kept draws of several chains, all equally likely.

    In a guide, ``sample("z", EmpiricalDraws(param("z"), 1))`` says that the posterior of z is what the chains have
    seen. Its "centre" is their mean; asked for K draws it gives K of those it holds, evenly spread over chains and over
    the length of each. It has no density: ``log_prob`` is 0, so that an ELBO's gradient in the model's parameters is
    the gradient of the log joint averaged over the draws (Fisher's identity).

    Args:
        draws: (*batch, chains, kept, *event).
        event_dim: how many dimensions an event has.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    has_rsample = False

    def __init__(self, draws: Tensor, event_dim: int = 0, validate_args: bool | None = None) -> None:
        cut = draws.dim() - event_dim - 2
        self.draws = draws
        self.chains, self.kept = draws.shape[cut : cut + 2]
        super().__init__(draws.shape[:cut], draws.shape[cut + 2 :], validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """All of R^d: what the draws may be is the model's business."""
        return constraints.independent(constraints.real, self.event_dim)

    def expand(self, batch_shape: torch.Size, _instance: object = None) -> EmpiricalDraws:
        """The same draws over a larger batch shape."""
        shape = (*batch_shape, self.chains, self.kept, *self.event_shape)
        return EmpiricalDraws(self.draws.expand(shape), self.event_dim, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """(*batch, *event)."""
        cut = len(self.batch_shape)
        return self.draws.mean((cut, cut + 1))

    def some(self, number: int) -> Tensor:
        """So many draws, (number, *batch, *event): chain after chain, each read evenly from its first to its last.

        More than there are come again.
        """
        cut = len(self.batch_shape)
        of_chain = -(-number // self.chains)
        at = torch.arange(of_chain, device=self.draws.device) * self.kept // of_chain
        picked = self.draws.index_select(cut + 1, at).movedim((cut, cut + 1), (0, 1)).flatten(0, 1)
        return picked[:number]

    def log_prob(self, value: Tensor) -> Tensor:
        """Zero, everywhere."""
        return value.new_zeros(broadcast_shapes(value.shape[: value.dim() - self.event_dim], self.batch_shape))

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """Some of the draws."""
        return self.some(max(1, sample_shape.numel())).reshape(*sample_shape, *self.batch_shape, *self.event_shape)
