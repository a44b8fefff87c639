"""A prior that is known by its energy."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from .empirical_draws import EmpiricalDraws


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
        self.draws = EmpiricalDraws(draws.detach(), 1)
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
        """The mean of the draws."""
        return self.draws.mean

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """Draws picked at random."""
        cut = len(self.batch_shape)
        pool = self.draws.draws.flatten(cut, cut + 1)  # *batch, all, d
        which = torch.randint(pool.shape[cut], (*sample_shape, *self.batch_shape, 1, 1), device=pool.device)
        pool = pool.expand(*sample_shape, *pool.shape)
        return pool.gather(-2, which.expand(*which.shape[:-1], pool.shape[-1])).squeeze(-2)
