"""The population: levels of random effects, and the vector of numbers that clients' likelihoods are functions of.

    theta = (L of each level, the response's own numbers, beta)                                             (6)

beta is among them where :attr:`.protocol.Likelihood.searches_beta`, and otherwise follows from the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hierfl.data.formula.design import Design
from hierfl.data.formula.grouping import Grouping
from hierfl.errors import UserError
from hierfl.inference.method.base import Method
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.responses.registry import response_of

from ..likelihood.protocol import Likelihood
from .covariance import Covariance
from .levels import Level, levels_of
from .prior_text import check_priors
from .settings import Settings as MixedSettings

if TYPE_CHECKING:
    from ..private.noise_of_fit import PrivateFit


class Population(Method):
    """Levels, the response, and the numbers that are searched."""

    tabular = True
    network: Design

    @dataclass(frozen=True)
    class Settings(MixedSettings):
        """See :class:`.settings.Settings`."""

    settings: Settings
    #: columns and noise of a fit with differential privacy inside its clients; None without
    private: PrivateFit | None = None

    def __init__(self, network: Architecture, **settings: Any) -> None:
        if not isinstance(network, Design):
            raise UserError("mixed-effects models are made from a Design (--formula), not from a network")
        super().__init__(network, **settings)
        self._describe(network.uncorrelated() if self.settings.covariance == "diagonal" else network)
        if self.settings.population == "auto":
            self.settings = replace(self.settings, population=self.likelihood.automatic)
        s = self.settings
        check_priors(s)
        if s.population == "bayes" and not s.draws:
            raise UserError("a posterior of the population is made of its draws: draws must be above 0")
        self.likelihood.check()
        if network.correlation is not None and (s.one_round or s.kenward_roger):
            what = "one_round" if s.one_round else "kenward_roger"
            why = "sends sums in which rows do not correlate" if s.one_round else "is of variances that V is linear in"
            raise UserError(f"{what} {why}: not of a model with correlation=")
        if s.one_round and len(self.groupings) > 1:
            raise UserError("one_round is of clients without groups inside or above them: other fits take some rounds")
        if s.one_round and self.likelihood.searches_beta:
            raise UserError(f"one_round is of a gaussian response, not a {network.family} one")

    def _describe(self, network: Design) -> None:
        """What follows from the columns."""
        self.network = network
        #: by the names of the shared values that are their roots: the levels' effects, and their covariances
        self.levels = levels_of(network)
        self.groupings: dict[str, Grouping] = {level.name: level.grouping for level in self.levels}
        self.covariances: dict[str, Covariance] = {level.name: level.covariance for level in self.levels}
        self.covariance = self.covariances["root"]
        self.response_family = response_of(network, self.settings)

    @property
    def likelihood(self) -> Likelihood:
        """What clients compute, and what the server makes of its sums."""
        raise NotImplementedError

    @property
    def unit(self) -> float:
        """How far the linear predictor spreads, where coefficients are searched; see :class:`.base.Response`."""
        return self.network.scale if self.network.spread else self.response_family.unit

    @property
    def inside(self) -> tuple[Level, ...]:
        """Levels inside a client."""
        return tuple(level for level in self.levels if level.inside)

    @property
    def above(self) -> tuple[Level, ...]:
        """Levels above the clients, whose effects the server integrates out."""
        return tuple(level for level in self.levels if level.where == "server")

    @property
    def at_site(self) -> tuple[Level, ...]:
        """Levels whose effects clients know: theirs, and those of groups inside."""
        return tuple(level for level in self.levels if level.where == "site")

    def first_sd(self, level: str = "root") -> Tensor:
        """The standard deviations of a level's effects to begin with, of columns in the design's units, (q,)."""
        sd = self.settings.sd_0 * self.network.scale
        return torch.full((self.covariances[level].q,), sd, dtype=torch.float64)

    def first_roots(self) -> State:
        """The entries of each level's L to begin with."""
        return {k: covariance.diagonal(self.first_sd(k)) for k, covariance in self.covariances.items()}

    # -- what clients' likelihoods are functions of -------------------------------------------------------------------

    @property
    def sizes(self) -> dict[str, int]:
        """How many numbers each value has that clients' messages are functions of; coefficients come last."""
        learned = self.settings.prior == "hierarchical"
        sizes = {k: covariance.entries for k, covariance in self.covariances.items()} if learned else {}
        sizes |= {name: first.numel() for name, first in self.response_family.starts.items()}
        return {**sizes, "beta": len(self.network.fixed)} if self.likelihood.searches_beta else sizes

    @property
    def k(self) -> int:
        """How many there are."""
        return sum(self.sizes.values())

    @property
    def parameters(self) -> int:
        """Numbers that are estimated, coefficients among them."""
        return sum({**self.sizes, "beta": len(self.network.fixed)}.values())

    def parts(self, numbers: Tensor) -> State:
        """The values (..., size) that numbers (..., k) are, the family's single ones (...).

        Draws of the population have a gaussian response's coefficients behind them, and the effects of groups of
        clients, regions (..., R + 1, q).
        """
        sizes = self.sizes
        if numbers.shape[-1] > self.k:
            sizes = {**sizes, "beta": len(self.network.fixed)}
            sizes |= {level.effects: level.size * level.q for level in self.above}
        values = dict(zip(sizes, numbers.split(list(sizes.values()), -1), strict=True))
        for level in self.above:
            if level.effects in values:
                values[level.effects] = values[level.effects].unflatten(-1, (level.size, -1))
        return {k: v.squeeze(-1) if k in self.single else v for k, v in values.items()}

    def numbers(self, parts: Mapping[str, Tensor]) -> Tensor:
        """(..., k) of the values."""
        values = [parts[k].unsqueeze(-1) if k in self.single else parts[k] for k in self.sizes]
        return torch.cat(values, -1) if values else torch.zeros(0, dtype=torch.float64)

    @property
    def single(self) -> set[str]:
        """The family's own values that are one number."""
        return {name for name, first in self.response_family.starts.items() if not first.dim()}

    @property
    def restricted(self) -> bool:
        """Whether restricted estimates of another response than gaussian are searched."""
        asked = self.settings.population in ("auto", "reml")
        return asked and self.likelihood.searches_beta and self.k > len(self.network.fixed)
