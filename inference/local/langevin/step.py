"""Local Langevin dynamics on a restricted model: draws of a client's latents given the globals.

The target of client j is its restricted log joint, up to a constant its log posterior,

    U_j(z) = log p(z | w) + sum_i log p(y_ij | x_ij, z, theta),

and a step of size gamma with preconditioner P (1 without) is

    z' = z + gamma P grad U_j(z) + sqrt(2 gamma P) xi,    xi ~ N(0, I).

Unadjusted, its stationary law is off by O(gamma): for a Gaussian of variance s^2 it has variance s^2 / (1 - gamma /
(2 s^2)). With minibatches the likelihood is weighted by n_j / b_j, which keeps the gradient unbiased (Welling and Teh,
ICML 2011). Metropolis-adjusted (MALA; Roberts and Tweedie, Bernoulli 1996), z' is accepted with probability
min(1, p(z') q(z | z') / (p(z) q(z' | z))), and the stationary law is the posterior.

All rows of the plate and all chains move at once, each with its own step size and its own decision. Latents with
constraints move on the real line, with the Jacobian of the map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import pyro
import torch
from torch import Tensor

from hierfl.data.padding import buckets
from hierfl.errors import UserError, unknown
from hierfl.ppl.frozen_features import FrozenFeatures
from hierfl.rng import ClientNoise

from ...clients.chunk import ClientChunk
from ...clients.minibatches import Minibatches, MinibatchPlaces, constant_features, plan, regrouped
from ...state import State
from ..replay import Replayed
from .layout import like_event, sum_over_event
from .names import STATS, kept_as, stats_of
from .preconditioner import Preconditioner, Preconditioning
from .target import Density, Target

#: a proposal that is so much less likely than where the chain is, in nats: the step is far too long
DIVERGENT_NATS = 1000.0
#: chains x examples of a pass, whose derivatives hold some twenty numbers for each
HELD = 1_000_000


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
        precondition: "none"; "rms", 1 / sqrt(E g^2) with a running mean (Li et al., AAAI 2016; without its curvature
            term); "fisher", 1 / E g^2 (the diagonal of Titsias, NeurIPS 2023); "full", his (E g g^T)^-1, one matrix per
            latent, for few numbers that depend on each other. They are learned during burn-in from the gradients g of
            all of a row's chains, then held.
        burn: steps at the beginning that are not kept.
        thin: every so many of the others are.
        target: acceptance to adapt each step size to during burn-in (0.574 is best for MALA in high dimension;
            Roberts and Rosenthal, JRSS B 1998); None to leave it.
        start: "last" goes on from the last kept draw (stateful), "prior" draws again (stateless).
        sizes: a personal value (chains,) that remembers adapted step sizes from round to round; 0 for none yet.

    Beside the draws rows get ``z_draws/stats``, (chains, kept, 3), see :data:`STATS`: no method declares it, and it is
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
    start: Literal["last", "prior"] = "last"
    sizes: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.names, str):
            raise UserError(f"Langevin moves a list of latents: Langevin([{self.names!r}], ...)")
        if self.precondition not in get_args(Preconditioning):
            raise unknown("preconditioner", self.precondition, get_args(Preconditioning))
        if self.start not in ("last", "prior"):
            raise unknown("start of a chain", self.start, ["last", "prior"])
        for name, least in (("steps", 0), ("burn", 0), ("thin", 1), ("batch", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"Langevin's {name} must be at least {least}, not {value}")
        if not 0 < self.step_size < float("inf"):
            raise UserError(f"Langevin's step_size must be above 0, not {self.step_size}")
        if self.steps and self.kept < 1:
            raise UserError(
                f"{self.steps} steps, {self.burn} of burn-in and one kept of {self.thin} keep nothing: more steps"
            )
        if self.batch is not None and self.metropolis:
            raise UserError("a minibatch knows no acceptance probability: metropolis needs batch=None")
        if self.precondition != "none" and not self.burn:
            raise UserError(f"the preconditioner {self.precondition!r} is learned during burn-in: burn must be above 0")
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
                found = [self._minibatches(chunk, phase)]
            else:
                cut = buckets(chunk.sizes, HELD // self._chains(chunk))
                found = [self._whole(chunk.part(*rows), phase) for rows in cut]
        return chunk.put({name: torch.cat([rows[name] for rows in found]) for name in found[0]})

    # -- one set of rows ------------------------------------------------------------------------------------------

    def _whole(self, chunk: ClientChunk, phase: object) -> State:
        batch = chunk.batch()
        frozen = FrozenFeatures.of(batch.x, frozenset(self.names), chunk.view)
        noise, target = self._noise(chunk, phase), Target(chunk)
        density = self._recorded(chunk, noise, lambda places: target.density(batch, frozen))
        return self._chain(chunk, target, noise, lambda: density([]))

    def _noise(self, chunk: ClientChunk, phase: object) -> ClientNoise:
        return chunk.noise(phase, self._chains(chunk)).reading(self.steps)

    def _minibatches(self, chunk: ClientChunk, phase: object) -> State:
        size = min(self.batch or 1, max(chunk.sizes))
        frozen = FrozenFeatures(frozenset(self.names), partial(constant_features, chunk))
        noise, target = self._noise(chunk, phase), Target(chunk)
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
        """C, from the shape of what is kept: (S, 1, C, kept, *event)."""
        return chunk.values[kept_as(self.names[0])].shape[2]

    def _chain(self, chunk: ClientChunk, target: Target, noise: ClientNoise, fresh: Callable[[], Density]) -> State:
        """Runs the chains.

        Args:
            chunk: the rows.
            target: maps latents to the real line and back.
            noise: of the rows.
            fresh: the density for the next step.
        """
        z = target.begin(self.names, self.start, noise.reading(1))
        density = fresh()
        chains, rows = noise.particles, len(chunk.clients)
        z = {k: v.contiguous() for k, v in z.items()}
        gamma = self._first_sizes(chunk, chains)
        scale = Preconditioner(self.precondition)
        height, slope = density(z)
        chances, wild = torch.zeros_like(gamma), torch.zeros_like(gamma)  # since the last kept draw
        recent, count = gamma.log(), 0
        kept = {k: v.new_empty((rows, 1, chains, self.kept, *v.shape[3:])) for k, v in target.constrained(z).items()}
        stats = gamma.new_empty((rows, 1, chains, self.kept, len(STATS)))
        for step in range(self.steps):
            noise.at(step)
            burning = step < self.burn
            if burning:
                scale.learn(slope)
            xi = {k: noise.normal(k, None, v.shape[3:]).contiguous() for k, v in z.items()}
            proposal, drift = {}, {}
            for k in z:
                g = like_event(gamma, z[k])
                drift[k] = z[k] + g * scale.apply(k, slope[k])
                proposal[k] = drift[k] + (2 * g).sqrt() * scale.root(k, xi[k])
            if not self.metropolis:
                z = proposal
                if step + 1 < self.steps:
                    if self.batch is not None:
                        density = fresh()
                    height, slope = density(z)
            else:
                there, slope_there = density(proposal)
                log_ratio = there - height
                for k in z:
                    back = z[k] - proposal[k] - like_event(gamma, z[k]) * scale.apply(k, slope_there[k])
                    log_ratio = log_ratio + sum_over_event(0.5 * xi[k].square()) - scale.square(k, back) / (4 * gamma)
                coin = torch.special.ndtr(noise.normal("/accept", None, torch.Size()).squeeze(-1)).log()
                taken = coin < log_ratio  # (not where the ratio is not a number)
                z = {k: torch.where(like_event(taken, v), proposal[k], v) for k, v in z.items()}
                slope = {k: torch.where(like_event(taken, v), slope_there[k], v) for k, v in slope.items()}
                height = torch.where(taken, there, height)
                chance = log_ratio.exp().clamp(max=1).nan_to_num(0.0)
                if burning and self.target is not None:
                    rate = (step + 1) ** -0.6
                    gamma = (gamma.log() + rate * 4 * (chance - self.target)).exp()
                    # what is held afterwards is an average over the later half, which is steadier than the last one
                    past = max(1, step + 1 - self.burn // 2)
                    recent = recent + (gamma.log() - recent) / past
                    if step + 1 == self.burn:
                        gamma = recent.exp()
                elif not burning:
                    chances, wild = chances + chance, wild + ~(log_ratio > -DIVERGENT_NATS)
            if not burning and (step + 1 - self.burn) % self.thin == 0:
                for k, v in target.constrained(z).items():
                    kept[k][:, 0, :, count] = v.detach()[:, :, 0].transpose(0, 1)
                numbers = torch.stack([chances / self.thin, gamma, (wild > 0).to(gamma)], -1)
                stats[:, 0, :, count] = numbers.transpose(0, 1)
                count += 1
                chances, wild = torch.zeros_like(gamma), torch.zeros_like(gamma)
        result = {kept_as(k): draws for k, draws in kept.items()}
        if self.sizes:
            result[self.sizes] = gamma.mT.reshape(rows, 1, chains)
        result[stats_of(self.names[0])] = stats
        return result

    def _first_sizes(self, chunk: ClientChunk, chains: int) -> Tensor:
        """(C, S)."""
        size = torch.full((chains, len(chunk.clients)), self.step_size, dtype=chunk.n.dtype, device=chunk.n.device)
        if self.sizes is None:
            return size
        known = chunk.values[self.sizes].squeeze(1).mT
        return torch.where(known > 0, known, size)
