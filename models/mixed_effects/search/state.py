"""State of a search: what its phases read and write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.state import State

from ..likelihood.protocol import Likelihood
from ..model.equations import MixedModel
from .climb import ROUNDING
from .criterion import Criterion, Surface
from .requests import Phase


@dataclass(frozen=True)
class Search:
    """What all phases have in common. Nothing else outlives a round.

    Args:
        method: whose population.
        values: shared values by short names, "effects." left out; phases write into it.
        memory: of the server, from round to round; phases write into it.
        context: of the round.
    """

    method: MixedModel
    values: State
    memory: State
    context: AggregationContext

    @cached_property
    def surface(self) -> Surface:
        """What is climbed and explored."""
        return Surface(self.method)

    @property
    def likelihood(self) -> Likelihood:
        """Whose sums these are."""
        return self.method.likelihood

    @property
    def criterion(self) -> Criterion:
        """Whose maximum the first climb finds."""
        return first_criterion(self.method)

    @property
    def constant(self) -> float:
        """What that criterion is more in the table's units than in the design's."""
        return self.surface.reml_constant if self.criterion == "reml" else 0.0

    @property
    def digits(self) -> float:
        """The digits to which heights at different points can be compared, relative to them."""
        return self.likelihood.digits or ROUNDING

    @property
    def known(self) -> Any:
        """What placed the nodes of the last round: see :mod:`.placing`."""
        return self.likelihood.known(self.memory, before=True)

    @property
    def numbers(self) -> Tensor:
        """The estimates, (k,)."""
        return self.method.numbers(self.values)

    @property
    def phase(self) -> Phase:
        """What the round was about."""
        return Phase(int(self.values["phase"]))

    @property
    def shared(self) -> Mapping[str, Tensor]:
        """The values as they are broadcast."""
        return {f"effects.{name}": value for name, value in self.values.items()}

    def enter(self, phase: Phase) -> None:
        """What the next rounds are about."""
        self.values["phase"] = torch.tensor(float(phase))


def first_criterion(method: MixedModel) -> Criterion:
    """Restricted where coefficients can be integrated out of the sums; elsewhere that is a search of its own."""
    restricted = method.settings.population == "reml" and not method.likelihood.searches_beta
    return "reml" if restricted else "ml"
