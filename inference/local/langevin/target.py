"""The density that chains move in, on the real line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.distributions import biject_to

from hierfl.data.batch import Batch
from hierfl.errors import UserError
from hierfl.ppl.empirical_draws import EmpiricalDraws
from hierfl.ppl.frozen_features import FrozenFeatures
from hierfl.ppl.guide_draws import draw_with
from hierfl.ppl.restrict import Restrict
from hierfl.rng import ClientNoise

from ...clients.chunk import ClientChunk
from ...objective.log_joint import log_joint
from ...state import State
from .layout import sum_over_event
from .names import kept_as
from .reference import Coordinates

#: log U(z) and its gradient at z, by name: (C, S) and (C, S, 1, *event)
Density = Callable[[State], tuple[Tensor, State]]


#: chains that are to find the same posterior begin further apart than its draws are, by this factor
DISPERSION = 1.5


class Map(Protocol):
    """A map from real numbers to a latent's support, as a torch transform has it."""

    def __call__(self, u: Tensor) -> Tensor:
        """Maps u to the head z."""
        ...

    def inv(self, z: Tensor) -> Tensor:
        """And back."""
        ...

    def log_abs_det_jacobian(self, u: Tensor, z: Tensor) -> Tensor:
        """The log determinant of the map's Jacobian, absolute."""
        ...


class Target:
    """The restricted log joint of some rows as a function of real numbers, and the way there and back.

    Args:
        chunk: the rows.
        curvature: whether these are coordinates of the one latent in which its posterior is near to a standard normal.
    """

    def __init__(self, chunk: ClientChunk, curvature: bool = False) -> None:
        self.chunk, self.values, self.curvature = chunk, chunk.view, curvature
        #: of each latent, from :meth:`begin` on
        self.maps: dict[str, Map] = {}

    def begin(self, names: Sequence[str], start: str, noise: ClientNoise) -> State:
        """The first states of the chains, {name: (C, S, 1, *event)}."""
        last: State = {}
        if start == "last" or (start == "apart" and not self.curvature):
            last = {k: self._last(kept_as(k), start, noise.particles) for k in names}
        drawn: State = {}

        def from_prior(name: str, fn: object, in_data: bool) -> Tensor:
            value = draw_with(noise)(f"{name}/prior", fn, in_data)
            drawn[name] = value.expand(noise.particles, *value.shape[-2 - len(fn.event_shape) :])  # type: ignore[attr-defined]
            return drawn[name]

        with torch.no_grad(), Restrict(self.values, latents=last, draw=from_prior) as restricted:
            self.chunk.method.model(self.chunk.federation.template(len(self.chunk.clients)))
        for name in names:
            site = restricted.sites.get(name)
            if site is None or site.kind != "latent" or not site.per_client or site.per_example:
                raise UserError(f"Langevin moves latents of the client plate, and {name!r} is none")
            self.maps[name] = Coordinates.nearest(self.chunk, name) if self.curvature else biject_to(site.fn.support)
        if drawn.keys() - set(names):
            raise UserError(f"latent {sorted(drawn.keys() - set(names))[0]!r} of the model is moved by no step")
        if start == "apart" and self.curvature:
            return {k: DISPERSION * noise.normal(f"{k}/start", None, drawn[k].shape[3:]) for k in names}
        begin = drawn if start == "prior" else last
        return {k: self.maps[k].inv(begin[k]).detach() for k in names}

    def _last(self, kept: str, start: str, chains: int) -> Tensor:
        """(C, S, 1, *event): chains' last draws, or draws along them."""
        draws = self.chunk.values[kept]
        if start == "apart":
            return EmpiricalDraws(draws, draws.dim() - 4).some(chains)
        at = torch.arange(chains, device=draws.device) % draws.shape[2]
        return draws[:, :, at, -1].movedim(2, 0)

    def constrained(self, u: Mapping[str, Tensor]) -> State:
        """Back to where the model lives."""
        return {k: self.maps[k](v) for k, v in u.items()}

    def density(self, batch: Batch, frozen: FrozenFeatures) -> Density:
        """The log density on the real line and its gradient."""

        def at(u: State) -> tuple[Tensor, State]:
            leaves = {k: v.detach().requires_grad_() for k, v in u.items()}
            latents = {k: self.maps[k](v) for k, v in leaves.items()}
            total = log_joint(self.chunk.method, batch, self.values, latents, frozen=frozen)
            for k, z in leaves.items():
                jacobian = self.maps[k].log_abs_det_jacobian(z, latents[k])
                total = total + sum_over_event(jacobian)
            slopes = torch.autograd.grad(total.sum(), list(leaves.values()))
            return total.detach(), dict(zip(leaves, slopes, strict=True))

        return at
