"""What a method's guide and model are made of: a description of their sites, taken once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyro.distributions import Delta
from torch import Tensor
from torch.distributions import Independent

from hierfl.data.batch import Batch
from hierfl.ppl.empirical_draws import EmpiricalDraws

from ..objective.joint_model import JointModel
from ..objective.sites import guide_latents, model_sites


@dataclass(frozen=True)
class Latent:
    """A latent of the guide.

    Attributes:
        event_shape: of one value.
        per_example: whether every example has one, not every client.
        point: whether its posterior is a point.
        draws: chains and kept draws of each, where the posterior is made of draws; None elsewhere.
    """

    event_shape: torch.Size
    per_example: bool
    point: bool
    draws: tuple[int, int] | None


@dataclass(frozen=True)
class Trace:
    """The sites of a method.

    Attributes:
        latents: of the guide, by name.
        global_latents: shared values that are latents of the model, not parameters.
        shared_draws: whether shared values alone have draws of their posterior.
    """

    latents: Mapping[str, Latent]
    global_latents: tuple[str, ...]
    shared_draws: bool = False

    @classmethod
    def from_template(
        cls, method: JointModel, template: Batch, values: Mapping[str, Tensor], shared: Mapping[str, Tensor],
        drawn: Callable[[], bool],
    ) -> Trace:  # fmt: skip
        """Runs guide and model once, on one row without data.

        Args:
            method: whose.
            template: a batch of one row.
            values: what the row sees.
            shared: the shared values among them.
            drawn: whether there are draws of the shared values; asked where all latents are points.
        """
        with pyro.validation_enabled(False), torch.no_grad():  # what diverged is reported elsewhere
            sites = guide_latents(method, template, values, None)
            model = model_sites(method, template, values, sites)
        latents = {
            name: Latent(site.fn.event_shape, site.per_example, is_point(site.fn), _draws(site.fn))
            for name, site in sites.items()
        }
        fixed = tuple(name for name, s in model.items() if s.kind == "fixed" and name in shared)
        return cls(latents, fixed, all(latent.point for latent in latents.values()) and drawn())

    @property
    def random(self) -> bool:
        """Whether something has a posterior that is no point."""
        return self.shared_draws or not all(latent.point for latent in self.latents.values())

    @property
    def by_example(self) -> bool:
        """Whether examples have latents of their own."""
        return any(latent.per_example for latent in self.latents.values())

    @property
    def numbers_per_client(self) -> int:
        """The numbers of a client's latents together."""
        return sum(math.prod(latent.event_shape) for latent in self.latents.values() if not latent.per_example)

    @property
    def numbers_per_example(self) -> int:
        """The numbers of an example's latents together."""
        return sum(math.prod(latent.event_shape) for latent in self.latents.values() if latent.per_example)

    @property
    def chains(self) -> int:
        """How many chains the guide holds; 1 where it is not made of draws."""
        return self._stored_draws[0] if self._stored_draws else 1

    @property
    def kept(self) -> int:
        """How many draws it holds in all; 0 where it is not made of draws."""
        return math.prod(self._stored_draws) if self._stored_draws else 0

    @property
    def _stored_draws(self) -> tuple[int, int] | None:
        numbers = {latent.draws for latent in self.latents.values()}
        return numbers.pop() if len(numbers) == 1 else None

    @property
    def draws_of(self) -> str:
        """What draws are: of "chains", a "guide", a "point", latents of single "examples", or "shared" values alone."""
        if all(latent.point for latent in self.latents.values()):
            return "shared" if self.shared_draws else "point"
        if self.by_example:
            return "examples"
        return "chains" if self.kept else "guide"


def is_point(fn: Any) -> bool:
    """Whether a guide's distribution is a point."""
    while isinstance(fn, Independent):
        fn = fn.base_dist
    return isinstance(fn, Delta)


def _draws(fn: Any) -> tuple[int, int] | None:
    return (fn.chains, fn.kept) if isinstance(fn, EmpiricalDraws) else None
