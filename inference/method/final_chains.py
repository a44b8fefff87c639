"""Final sampling for any method: Metropolis-adjusted chains on every client's head after the last round.

The shared values are held, and so is what else is the client's own. A method whose shared values have a posterior that
it draws from (:meth:`~hierfl.inference.method.base.Method.shared_draws`) has a short chain at each of these draws.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyro
import torch
from pyro.distributions import Normal
from torch.distributions import Independent

from hierfl.data.batch import Batch
from hierfl.data.federation import Federation
from hierfl.errors import UserError
from hierfl.ppl.empirical_draws import EmpiricalDraws
from hierfl.ppl.plates import clients, param, sample

from ..clients.chunk import ClientChunk
from ..local.base import LocalStep
from ..local.langevin.adjusted import ACCEPTANCE, LEAPS, STEP_SIZE, adjusted
from ..local.langevin.chain import Chain
from ..local.langevin.moved_head import MovedHead
from ..local.langevin.names import kept_as
from ..local.laplace.step import GaussianHead
from ..objective.sites import guide_latents, model_sites
from ..options import Options
from ..state import State, client_view
from .base import Method
from .capabilities import is_tabular
from .derived import derived
from .initial import InitialWeights
from .schedule import Schedule

#: chains, steps of burn-in, kept draws of each and steps between them
CHAINS, BURN, KEPT, THIN = 4, 50, 150, 1
#: where each draw has a chain of its own: steps whose size is adapted, and steps after them
ADAPTED, MOVES = 5, 3


def ending_as(options: Options, method: Method, federation: Federation) -> Method:
    """The method, with the end that the options say."""
    if options.final == "method":
        return method
    return with_final_chains(method, federation.template(), options.rounds)


def with_final_chains(method: Method, template: Batch, rounds: int) -> Method:
    """The same method, whose clients sample their heads at the end.

    Args:
        method: what is fitted.
        template: one row without data.
        rounds: the last one's number.

    Raises:
        UserError: where there is nothing to sample, or nothing that these chains can sample.
    """
    latent, final = _head_of(method, template), list(method.schedule().final_steps)
    sampled, cls = copy.copy(method), type(method)
    gaussian = [step for step in final if isinstance(step, GaussianHead) and step.final]
    if gaussian:
        chain = Chain(
            ADAPTED + MOVES, metropolis=True, burn=ADAPTED, thin=MOVES, target=ACCEPTANCE, near_normal=True,
            together=True, leaps=LEAPS,
        )  # fmt: skip
        moved = MovedHead(**vars(gaussian[-1]), chain=chain, step_size=STEP_SIZE)
        sampled.__class__ = derived(cls, _Replaced)
        sampled.new_steps = [moved if step is gaussian[-1] else step for step in final]  # type: ignore[attr-defined]
        sampled.final_steps = [  # type: ignore[attr-defined]
            replace(moved, since=rounds) if step is gaussian[-1] else step for step in final
        ]
        return sampled
    if final:
        raise UserError(f"{_name(method)} ends with steps of its own, which final='chains' does not replace")
    step = adjusted([latent], BURN, KEPT, THIN, CHAINS)
    sampled.__class__ = derived(cls, _Sampled)
    drawn = kept_as(latent)
    sampled.latent_sampled, sampled.drawn, sampled.final_steps = latent, drawn, [step]  # type: ignore[attr-defined]
    sampled.new_steps = [_Emptied(drawn), *method.new_client_steps(), step]  # type: ignore[attr-defined]
    return sampled


def _name(method: Method) -> str:
    return method.name or type(method).__name__


def _head_of(method: Method, template: Batch) -> str:
    """The one latent of a client, a linear head with a Normal prior."""
    name = _name(method)
    if is_tabular(method):
        raise UserError(f"{name} draws from its posterior by itself, and takes no final='chains'")
    start, dtype = InitialWeights.for_network(method.network, 0), template.n.dtype
    shared, own = (
        {k: v.to(template.n.device, dtype) for k, v in values.items()}
        for values in (method.shared(start), method.personal(start))
    )
    values = client_view(shared, {k: v[None, None] for k, v in own.items()})
    with pyro.validation_enabled(False), torch.no_grad():
        latents = guide_latents(method, template, values, None)
        sites = model_sites(method, template, values, latents)
    if any(site.per_example for site in latents.values()):
        raise UserError(f"{name} has a latent for each example, which final='chains' does not sample")
    if len(latents) != 1:
        raise UserError(f"final='chains' samples a method with one latent of a client, and {name} has {len(latents)}")
    (latent,) = latents
    prior: Any = sites[latent].fn
    base = prior.base_dist if isinstance(prior, Independent) else prior
    if not isinstance(base, Normal):
        how = "a flat prior: there is no posterior" if "Flat" in type(base).__name__ else "no Normal prior"
        raise UserError(f"{latent!r} of {name} has {how}, which final='chains' needs")
    if prior.event_shape.numel() != method.network.head.d:
        raise UserError(f"{latent!r} of {name} is more than the last layer, which is what final='chains' samples")
    return latent


class _Replaced(Method):
    """Other final steps, and those of a new client."""

    final_steps: Sequence[LocalStep]
    new_steps: Sequence[LocalStep]

    def schedule(self) -> Schedule:
        inner = super().schedule()
        new = self.new_steps if inner.new_client_steps is None else inner.new_client_steps
        return replace(inner, final_steps=self.final_steps, new_client_steps=new)


class _Sampled(_Replaced):
    """A latent's draws, once there are any, instead of its guide."""

    latent_sampled: str
    #: the personal value that holds the draws: none until the end
    drawn: str

    def personal(self, start: InitialWeights) -> State:
        return {**super().personal(start), self.drawn: start.head.new_zeros((CHAINS, 0, self.network.head.d))}

    def guide(self, batch: Batch) -> None:
        draws = param(self.drawn)
        if not draws.shape[-2]:
            super().guide(batch)
            return
        with clients(batch):
            sample(self.latent_sampled, EmpiricalDraws(draws, 1))

    def schedule(self) -> Schedule:
        return replace(super().schedule(), final_when="end")

    def client_summary(self, values: State) -> State:
        summary = super().client_summary(values)
        if "uncertainty" in summary and values[self.drawn].shape[-2]:
            summary["uncertainty"] = values[self.drawn].flatten(2, 3).var(2).mean((1, 2))  # tr Cov(w_j | D_j) / d
        return summary


@dataclass(frozen=True)
class _Emptied:
    """Forgets earlier draws before the guide is trained again."""

    name: str

    @property
    def trains(self) -> Sequence[str]:
        return (self.name,)

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        return chunk.put({self.name: chunk.values[self.name][:, :, :, :0]})
