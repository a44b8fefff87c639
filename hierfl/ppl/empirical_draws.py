"""What methods that sample are made of: the draws that chains have kept, as a guide; a prior known by its energy."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints


class Draws(TorchDistribution):
    """Kept draws of several chains, all equally likely.

    In a guide, ``sample("z", Draws(param("z"), 1))`` says that the posterior of z is what the chains have seen. Its
    "centre" is their mean; asked for K draws it gives K of those it holds, evenly spread over chains and over the
    length of each. It has no density: ``log_prob`` is 0, so that an ELBO's gradient in the model's parameters is the
    gradient of the log joint averaged over the draws (Fisher's identity).

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

    def expand(self, batch_shape: torch.Size, _instance: object = None) -> Draws:
        """The same draws over a larger batch shape."""
        shape = (*batch_shape, self.chains, self.kept, *self.event_shape)
        return Draws(self.draws.expand(shape), self.event_dim, validate_args=False)

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
        each = -(-number // self.chains)
        at = torch.arange(each, device=self.draws.device) * self.kept // each
        picked = self.draws.index_select(cut + 1, at).movedim((cut, cut + 1), (0, 1)).flatten(0, 1)
        return picked[:number]

    def log_prob(self, value: Tensor) -> Tensor:
        """Zero, everywhere."""
        return value.new_zeros(torch.broadcast_shapes(value.shape[: value.dim() - self.event_dim], self.batch_shape))

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """Some of the draws."""
        return self.some(max(1, sample_shape.numel())).reshape(*sample_shape, *self.batch_shape, *self.event_shape)


class Energy(TorchDistribution):
    """exp(-E(z)) / Z, where Z is not known but draws of it are: an energy-based prior.

    The gradient of -log Z in E's parameters is the mean of E's over the distribution itself, so that

        log_prob(z) = -E(z) + mean_k E(draw_k)

    has the right gradients, in z and in the parameters, while its value is off by what does not depend on z (persistent
    contrastive divergence; Tieleman, ICML 2008). Draws of it are some of those.

    Args:
        energy: E, (*shape, d) to (*shape).
        draws: (*batch, chains, kept, d), of a chain on exp(-E).
        learns: False for the density that such a chain moves on: -E alone.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    support = constraints.real_vector
    has_rsample = False

    def __init__(self, energy: Callable[[Tensor], Tensor], draws: Tensor, learns: bool = True) -> None:
        self.energy, self.learns = energy, learns
        self.draws = Draws(draws.detach(), 1)
        super().__init__(self.draws.batch_shape, self.draws.event_shape, validate_args=False)

    def expand(self, batch_shape: torch.Size, _instance: object = None) -> Energy:
        """The same over a larger batch shape."""
        return Energy(self.energy, self.draws.expand(batch_shape).draws, self.learns)

    def log_prob(self, value: Tensor) -> Tensor:
        """See the class."""
        height = -self.energy(value)
        if not self.learns:
            return height
        return height + self.energy(self.draws.some(self.draws.chains * self.draws.kept)).mean(0)

    @property
    def mean(self) -> Tensor:
        """Of the draws."""
        return self.draws.mean

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """Draws picked at random."""
        cut = len(self.batch_shape)
        pool = self.draws.draws.flatten(cut, cut + 1)  # (*batch, all, d)
        which = torch.randint(pool.shape[cut], (*sample_shape, *self.batch_shape, 1, 1), device=pool.device)
        pool = pool.expand(*sample_shape, *pool.shape)
        return pool.gather(-2, which.expand(*which.shape[:-1], pool.shape[-1])).squeeze(-2)
