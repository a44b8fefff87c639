"""Local stochastic variational inference: steps on the restricted ELBO of :mod:`hierfl.inference.objective.elbo`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import get_args

import pyro
import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.padding import buckets
from hierfl.errors import UserError, unknown
from hierfl.nn.layers.batch_norm import is_statistic
from hierfl.ppl.frozen_features import FrozenFeatures
from hierfl.ppl.restrict import Site
from hierfl.rng import ClientNoise

from ..clients.chunk import ClientChunk
from ..clients.held_out import held_out
from ..clients.minibatches import Minibatches, MinibatchPlaces, active_spans, constant_features, plan
from ..objective.constant_latent import constant_latent
from ..objective.elbo import Terms
from .block import Block, Per
from .gradient_transforms import GradientTransform
from .optimizers import MakeOptimizer, in_round, sgd
from .replay import take_steps
from .trainer import Trainer, all_leaves

#: a number, or one for each round, the same for all clients
Count = int | Callable[[ClientChunk], int]
#: from the rows that have taken a step, with their new values, the index of the first of them, and the step's number
Watch = Callable[[ClientChunk, int, int], None]


@dataclass(frozen=True)
class SVI:
    """Gradient steps on the rows' restricted ELBO, by a fresh optimiser each round.

    Args:
        names: what is trained: personal values, or shared ones (then each row trains a copy of its own). Running
            statistics of batch norm among them follow the batches, without a gradient.
        epochs: passes through a client's data.
        optimizer: from leaves to a torch optimiser that treats every element alike (SGD, Adam, ...).
        batch: examples per step; None for all of them.
        particles: K, draws of the guide per step.
        per: "sum" ascends the ELBO; "example" ascends ELBO / n_j, the mean log likelihood less KL / n_j.
        steps: so many minibatches instead of whole epochs.
        repeats: steps on each minibatch.
        terms: of the ELBO: all, those of the data plate, or the others (of which no data are needed).
        then: other values, trained after these on each minibatch, or these once more.
        transform: where the steps of ``names`` go, if not down the gradient.
        watch: is shown the rows after each step; it must not change them.
        predicts: each step is on such a share of all examples, drawn at random, given the others, for a model that
            conditions (:func:`hierfl.inference.clients.held_out.held_out`); None for all of them, given nothing.

    Steps are shortened by a response's learned variance, which leaves the optimum where it is; not those of
    ``terms="data"`` without a transform, which are gradients to be sent.
    """

    names: Sequence[str]
    epochs: int
    optimizer: MakeOptimizer
    batch: int | None = None
    particles: int = 1
    per: Per = "sum"
    steps: Count | None = None
    repeats: int = 1
    terms: Terms = "all"
    then: Sequence[Block] = ()
    transform: GradientTransform | None = None
    watch: Watch | None = None
    predicts: float | None = None

    def __post_init__(self) -> None:
        if self.per not in ("sum", "example"):
            raise unknown("objective (SVI's per)", self.per, ["sum", "example"])
        if isinstance(self.names, str):
            raise UserError(f"SVI trains a list of values: SVI([{self.names!r}], ...)")
        for block in self._blocks:
            if block.terms not in get_args(Terms):
                raise unknown("terms of an ELBO (SVI's terms)", block.terms, get_args(Terms))
            if block.repeats < 1:
                raise UserError(f"SVI's repeats must be at least 1, not {block.repeats}")
        least = {"epochs": 0, "particles": 1, "batch": 1, "steps": 0}
        for name, lowest in least.items():
            value = getattr(self, name)
            if isinstance(value, int) and value < lowest:
                raise UserError(f"SVI's {name} must be at least {lowest}, not {value}")
        if max(block.batches for block in self._blocks) > 1 and (self.steps is None or self.batch is None):
            raise UserError(
                "a gradient transform of several minibatches is counted in steps: SVI(..., batch=B, steps=N)"
            )
        if self.predicts is not None and (self.batch is not None or not 0 < self.predicts <= 1):
            raise UserError("SVI's predicts is a share of all examples: above 0, at most 1, without minibatches")

    @property
    def _blocks(self) -> tuple[Block, ...]:
        return (Block(self.names, self.optimizer, self.terms, self.repeats, self.transform), *self.then)

    @property
    def trains(self) -> Sequence[str]:
        """What is trained."""
        return tuple(name for block in self._blocks for name in block.names)

    def blocks_of(self, chunk: ClientChunk) -> list[Block]:
        """Its blocks with the names of all values, in this round; those without any are left out."""
        blocks = []
        for block in self._blocks:
            names = [k for name in block.names for k in chunk.method.expand(name, chunk.view)]
            optimizer = in_round(block.optimizer, chunk.round)
            blocks += [dataclasses.replace(block, names=names, optimizer=optimizer)] if names else []
        return blocks

    @property
    def blocks(self) -> Sequence[Block]:
        """What is trained in turn, in order."""
        return self._blocks

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Trains the rows; see the class."""
        blocks = self.blocks_of(chunk)
        trained = [k for block in blocks for k in block.names]
        chunk = chunk.own(trained)  # without epochs, too: what is trained is what is sent
        steps = self.steps(chunk) if callable(self.steps) else self.steps
        if not blocks or not (self.epochs if steps is None else steps):
            return chunk
        # validation costs in a hot loop; gradients are wanted whatever the caller has switched off
        with pyro.validation_enabled(False), torch.enable_grad():
            if self.batch is None:
                for first, last in buckets(chunk.sizes):
                    count = self.epochs if steps is None else steps
                    self._whole(chunk.part(first, last), blocks, phase, count, self._after(chunk, first, last))
            else:
                self._minibatches(chunk, blocks, phase, steps)
        return chunk

    def _after(self, chunk: ClientChunk, first: int, last: int) -> Callable[[int], None] | None:
        """What is done after each step of these rows."""
        watch, part = self.watch, chunk.part(first, last)
        return None if watch is None else lambda number: watch(part, first, number)

    def _whole(
        self,
        chunk: ClientChunk,
        blocks: Sequence[Block],
        phase: object,
        steps: int,
        after: Callable[[int], None] | None,
    ) -> None:
        names = frozenset(k for block in blocks for k in block.names)
        if self.predicts is not None:  # steps that differ in shape, and are drawn on the host, are not recorded
            chunk = dataclasses.replace(chunk, recorder=None)
        batch = chunk.batch()
        trainers = [Trainer(block, chunk, self.per, bool(self.then)) for block in blocks]
        turns = sum(block.turns for block in blocks)
        noise = chunk.noise(phase, self.particles, chunk.sizes).reading(steps * turns)
        values = {**chunk.view, **all_leaves(trainers)}
        frozen = FrozenFeatures.from_inputs(batch.x, names, values)

        def step(places: Sequence[MinibatchPlaces], noise: ClientNoise, number: int) -> None:
            noise.at(number * turns)
            examples = batch if self.predicts is None else held_out(chunk, batch, self.predicts, phase, number)
            self._round([examples], trainers, values, noise, frozen, number)

        take_steps(chunk, step, range(steps), lambda number: [], noise, turns, after)

    def _minibatches(self, chunk: ClientChunk, blocks: Sequence[Block], phase: object, steps: int | None) -> None:
        names = frozenset(k for block in blocks for k in block.names)
        batches_of_step = max(block.batches for block in blocks)  # the first is for all of them
        planned = plan(chunk, phase, self.batch or 1, self.epochs, None if steps is None else steps * batches_of_step)
        frozen = FrozenFeatures(names, partial(constant_features, chunk))
        turns = sum(block.turns for block in blocks)
        noise = chunk.noise(phase, self.particles).reading(planned.steps[0] * turns)
        batches = Minibatches(chunk, planned, frozen)
        trainers = [Trainer(block, chunk, self.per, bool(self.then)) for block in blocks]
        alone = turns == 1 and blocks[0].transform is None

        def places(number: int) -> list[MinibatchPlaces]:
            return [batches.at(number * batches_of_step + k) for k in range(batches_of_step)]

        # rows come largest first, so their plans longest first
        for first, last, active in active_spans(planned.steps):
            part = chunk.part(0, active)
            for trainer in trainers:
                trainer.narrow(part)
            values, standing = {**part.view, **all_leaves(trainers)}, None
            if alone:
                standing = constant_latent(chunk.method, part.n, values, noise.at(first, active), names)

            def step(
                places: Sequence[MinibatchPlaces],
                noise: ClientNoise,
                number: int,
                values: Mapping[str, Tensor] = values,
                standing: Site | None = standing,
            ) -> None:
                chosen = [batches.batch(at) for at in places]
                noise.counts = places[0].counts
                noise.at(number * turns, len(places[0].places))
                drawn = None if standing is None else standing.redrawn(noise)
                self._round(chosen, trainers, values, noise, frozen, number, drawn)

            take_steps(part, step, range(first // batches_of_step, last // batches_of_step), places, noise, turns,
                       self._after(chunk, 0, active))  # fmt: skip

    def _round(
        self,
        batches: Sequence[Batch],
        trainers: Sequence[Trainer],
        values: Mapping[str, Tensor],
        noise: ClientNoise,
        frozen: FrozenFeatures,
        step: int,
        latents: Mapping[str, Site] | None = None,
    ) -> None:
        """All blocks on one minibatch (or an iteration's several), one after the other."""
        turns, turn = sum(trainer.block.turns for trainer in trainers), 0
        for trainer in trainers:
            block = trainer.block
            for _ in range(block.repeats):
                if turns > 1 or block.transform is not None:  # a turn has draws of its own
                    noise.at(step * turns + turn, batches[0].num_clients)
                trainer.step(batches, values, noise, frozen, latents)
                turn += block.batches


def running_statistics(names: Iterable[str], epochs: int, batch: int | None) -> SVI:
    """Runs model and guide over the data for the sake of batch norm alone: running statistics follow, nothing learns.

    For weights that were averaged, whose statistics no client has seen yet (Izmailov et al., UAI 2018, section 3.2).

    Args:
        names: values among which are running statistics; the others stay.
        epochs: passes through a client's data.
        batch: examples at a time; None for all of them.
    """
    return SVI(sorted(filter(is_statistic, names)), epochs, sgd(0.0), batch)
