"""Local Langevin dynamics on a restricted model: draws of a client's latents given the globals.

The target of client j is its restricted log joint, up to a constant its log posterior,

    U_j(z) = log p(z | w) + sum_i log p(y_ij | x_ij, z, theta),

and a step of size gamma is

    z' = z + gamma grad U_j(z) + sqrt(2 gamma) xi,    xi ~ N(0, I).

Unadjusted, its stationary law is off by O(gamma): for a Gaussian of variance s^2 it has variance s^2 / (1 - gamma /
(2 s^2)). With minibatches the likelihood is weighted by n_j / b_j, which keeps the gradient unbiased (Welling and Teh,
ICML 2011). Metropolis-adjusted (MALA; Roberts and Tweedie, Bernoulli 1996), z' is accepted with probability
min(1, p(z') q(z | z') / (p(z) q(z' | z))), and the stationary law is the posterior.

All rows of the plate and all chains move at once, each with its own step size and its own decision. Latents with
constraints move on the real line, with the Jacobian of the map. A linear head with a Normal prior can move in
coordinates in which its posterior is near to a standard normal (:mod:`.reference`), by steps made for that
(:mod:`.chain`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import pyro
import torch
from torch import Tensor

from hierfl.data.padding import buckets
from hierfl.errors import UserError, unknown
from hierfl.nn.likelihoods import RESPONSE_SD
from hierfl.plurals import counted
from hierfl.ppl.frozen_features import FrozenFeatures
from hierfl.rng import ClientNoise

from ...clients.chunk import ClientChunk
from ...clients.minibatches import Minibatches, MinibatchPlaces, constant_features, plan, regrouped
from ...state import State
from ..replay import Replayed
from .chain import Chain
from .names import kept_as, stats_of
from .reference import parts
from .target import Density, Target

Preconditioning = Literal["none", "curvature"]
Start = Literal["last", "prior", "apart"]
#: chains x examples of a pass, whose derivatives hold some twenty numbers for each
MAX_NUMBERS_AT_ONCE = 1_000_000


@dataclass(frozen=True)
class Langevin:
    """Langevin steps on personal latents, from where the chains last stood or from the prior.

    What the chains of a latent z have kept is the personal value z_draws, (chains, kept, *event): ``personal()``
    declares it with that shape, and the guide says ``sample("z", Draws(param("z_draws"), event_dim))``.

    Args:
        names: the latents; they move together, and are accepted together.
        steps: M, burn-in included.
        step_size: gamma, where it is not adapted, and where adaptation begins.
        metropolis: accept or reject.
        batch: examples per step; None for all of them.
        precondition: "none"; "curvature": the steps are taken in coordinates in which the posterior of a linear head is
            near to a standard normal, a function of shared values and data alone; then gamma is at most 1.
        burn: steps at the beginning that are not kept.
        thin: every so many of the others are.
        target: acceptance to adapt each step size to during burn-in (0.574 is best for MALA in high dimension;
            Roberts and Rosenthal, JRSS B 1998); None to leave it.
        start: "last" goes on from the last kept draw (stateful), "prior" draws again (stateless), "apart" begins
            further apart than the posterior's draws are (with precondition="none" at draws along the last chains).
        sizes: a personal value (chains,) that remembers adapted step sizes from round to round; 0 for none yet.
        chains: how many, where there are to be others than the kept draws are of; 0 for as many.
        together: whether a client's chains have one step size.
        leaps: steps before a decision, with precondition="curvature"; see :class:`~.chain.Chain`.

    Beside the draws rows get ``z_draws/stats``, (chains, kept, 3), see
    :data:`~hierfl.inference.local.langevin.names.STATS`: no method declares it, and it is
    gone when the round ends; after the method's posterior steps it becomes the sample_stats of ``run.posterior()``.
    """

    names: Sequence[str]
    steps: int
    step_size: float
    metropolis: bool = False
    batch: int | None = None
    precondition: Preconditioning = "none"
    burn: int = 0
    thin: int = 1
    target: float | None = None
    start: Start = "last"
    sizes: str | None = None
    chains: int = 0
    together: bool = False
    leaps: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.names, str):
            raise UserError(f"Langevin moves a list of latents: Langevin([{self.names!r}], ...)")
        if self.precondition not in get_args(Preconditioning):
            raise unknown("preconditioner", self.precondition, get_args(Preconditioning))
        if self.start not in get_args(Start):
            raise unknown("start of a chain", self.start, get_args(Start))
        for name, least in (("steps", 0), ("burn", 0), ("thin", 1), ("batch", 1), ("chains", 0), ("leaps", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"Langevin's {name} must be at least {least}, not {value}")
        if not 0 < self.step_size < float("inf"):
            raise UserError(f"Langevin's step_size must be above 0, not {self.step_size}")
        if self.steps and self.kept < 1:
            raise UserError(
                f"{counted(self.steps, 'step')}, {self.burn} of burn-in and one kept of {self.thin} keep nothing: "
                "more steps"
            )
        if self.batch is not None and self.metropolis:
            raise UserError("a minibatch knows no acceptance probability: metropolis needs batch=None")
        if self.precondition == "curvature" and (len(self.names) > 1 or self.step_size > 1):
            raise UserError("precondition='curvature' is for one latent, and a step_size of at most 1")
        if self.leaps > 1 and not (self.metropolis and self.precondition == "curvature"):
            raise UserError("several leaps before a decision need metropolis and precondition='curvature'")
        if self.target is not None and not (self.metropolis and 0 < self.target < 1):
            raise UserError("a target acceptance lies between 0 and 1, and needs metropolis")
        if self.target is None and self.sizes:
            raise UserError("without a target no step size is adapted")

    @property
    def kept(self) -> int:
        """Draws of each chain that are kept."""
        return (self.steps - self.burn) // self.thin

    @property
    def trains(self) -> Sequence[str]:
        """What is changed."""
        return [*map(kept_as, self.names), *([self.sizes] if self.sizes else [])]

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Moves the chains of all rows."""
        for name in self.trains:
            if name not in chunk.values:
                raise UserError(f"Langevin moves {name!r}, which personal() does not declare")
        if not self.steps:
            return chunk
        with pyro.validation_enabled(False), torch.enable_grad():
            if self.batch is not None:
                parts = [self._minibatches(chunk.part(*rows), phase) for rows in self._cut(chunk, 0, len(chunk.sizes))]
            else:
                cut = buckets(chunk.sizes, MAX_NUMBERS_AT_ONCE // self._chains(chunk))
                parts = [self._whole(chunk.part(*rows), phase) for ends in cut for rows in self._cut(chunk, *ends)]
        return chunk.put({name: torch.cat([rows[name] for rows in parts]) for name in parts[0]})

    def _cut(self, chunk: ClientChunk, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Ranges of rows whose matrices fit into memory."""
        yield from parts(chunk, first, last) if self.precondition == "curvature" else [(first, last)]

    # -- one set of rows ------------------------------------------------------------------------------------------

    def _whole(self, chunk: ClientChunk, phase: object) -> State:
        batch = chunk.batch()
        frozen = FrozenFeatures.from_inputs(batch.x, frozenset(self.names), chunk.view)
        noise, target = self._noise(chunk, phase), Target(chunk, self.precondition == "curvature")
        density = self._recorded(chunk, noise, lambda places: target.density(batch, frozen))
        return self._chain(chunk, target, noise, lambda: density([]))

    def _noise(self, chunk: ClientChunk, phase: object) -> ClientNoise:
        return chunk.noise(phase, self._chains(chunk)).reading(self.steps)

    def _minibatches(self, chunk: ClientChunk, phase: object) -> State:
        size = min(self.batch or 1, max(chunk.sizes))
        frozen = FrozenFeatures(frozenset(self.names), partial(constant_features, chunk))
        noise, target = self._noise(chunk, phase), Target(chunk, self.precondition == "curvature")
        batches = Minibatches(chunk, plan(chunk, phase, size, 0, self.steps), frozen)
        density = self._recorded(chunk, noise, lambda places: target.density(batches.batch(*places), frozen))
        steps = iter(range(self.steps))
        return self._chain(chunk, target, noise, lambda: density([batches.at(next(steps))]))

    def _recorded(
        self, chunk: ClientChunk, noise: ClientNoise, density: Callable[[Sequence[MinibatchPlaces]], Density]
    ) -> Callable[[Sequence[MinibatchPlaces]], Density]:
        """A density given its minibatch, recorded where the rows have a recorder."""
        if chunk.recorder is None:
            return density
        names = list(self.names)

        def function(inputs: Sequence[Tensor | None], noise: ClientNoise) -> list[Tensor]:
            u, places = inputs[: len(names)], inputs[len(names) :]
            height, slopes = density(regrouped(places))(dict(zip(names, u, strict=True)))  # type: ignore[arg-type]
            return [height, *(slopes[k] for k in names)]

        replayed = Replayed(function, noise.reading(1), chunk.recorder)

        def given(places: Sequence[MinibatchPlaces]) -> Density:
            def at(u: State) -> tuple[Tensor, State]:
                height, *slopes = replayed([*(u[k] for k in names), *(v for p in places for v in p)], self.steps)
                return height, dict(zip(names, slopes, strict=True))

            return at

        return given

    def _chains(self, chunk: ClientChunk) -> int:
        """C, as said or from the shape of what is kept: (S, 1, C, kept, *event)."""
        return self.chains or chunk.values[kept_as(self.names[0])].shape[2]

    def _chain(self, chunk: ClientChunk, target: Target, noise: ClientNoise, fresh: Callable[[], Density]) -> State:
        """Runs the chains.

        Args:
            chunk: the rows.
            target: maps latents to the real line and back.
            noise: of the rows.
            fresh: the density for the next step.
        """
        begin = target.begin(self.names, self.start, noise.reading(1))
        gamma = self._first_sizes(chunk, noise.particles)
        how = Chain(
            self.steps, self.metropolis, self.burn, self.thin, self.target, self.precondition == "curvature",
            self.together, self.leaps,
        )  # fmt: skip
        kept, gamma, stats = how.run(begin, gamma, noise, fresh, target.constrained, self.batch is not None)
        result = {kept_as(k): draws for k, draws in kept.items()}
        if self.sizes:
            result[self.sizes] = gamma.mT.reshape(len(chunk.clients), 1, noise.particles)
        result[stats_of(self.names[0])] = stats
        return result

    def _first_sizes(self, chunk: ClientChunk, chains: int) -> Tensor:
        """(C, S)."""
        size = torch.full((chains, len(chunk.clients)), self.step_size, dtype=chunk.n.dtype, device=chunk.n.device)
        if (sd := chunk.view.get(RESPONSE_SD)) is not None and self.precondition == "none":
            size = size * sd.square().squeeze(-1)  # the likelihood's curvature is in units of its inverse
        if self.sizes is None:
            return size
        last_sizes = chunk.values[self.sizes].squeeze(1).mT
        return torch.where(last_sizes > 0, last_sizes, size)
