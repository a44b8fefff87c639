"""Local stochastic variational inference: steps on the restricted ELBO of :mod:`hierfl.inference.elbo`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import pyro
import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.padding import buckets
from hierfl.errors import UserError, unknown
from hierfl.nn.layers.batch_norm import Norms, is_statistic
from hierfl.ppl.frozen_features import FrozenFeatures
from hierfl.ppl.restrict import Site
from hierfl.rng import ClientNoise

from .directions import Direction
from .elbo import Terms, elbo, leaves, standing_latent
from .method import Local, State
from .minibatches import minibatches, plan, spans, standing_features

MakeOptimizer = Callable[[list[Tensor]], torch.optim.Optimizer]


def sgd(lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> MakeOptimizer:
    """Stochastic gradient descent."""
    return partial(torch.optim.SGD, lr=lr, momentum=momentum, weight_decay=weight_decay, fused=True)


def adam(lr: float, weight_decay: float = 0.0, memory: float = 0.999) -> MakeOptimizer:
    """Adam; ``weight_decay`` times the value is added to the gradient, ``memory`` is its beta_2."""
    return partial(torch.optim.Adam, lr=lr, weight_decay=weight_decay, betas=(0.9, memory))


#: a number, or one for each round, the same for all clients
Count = int | Callable[[Local], int]


@dataclass(frozen=True)
class Block:
    """Values that are trained in turn with others, on the same minibatches.

    Args:
        names, optimizer, terms, repeats: as for :class:`SVI`.
    """

    names: Sequence[str]
    optimizer: MakeOptimizer
    terms: Terms = "all"
    repeats: int = 1


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
        then: other values, trained after these on each minibatch.
        direction: where the steps go, if not down the gradient.
    """

    names: Sequence[str]
    epochs: int
    optimizer: MakeOptimizer
    batch: int | None = None
    particles: int = 1
    per: Literal["sum", "example"] = "sum"
    steps: Count | None = None
    repeats: int = 1
    terms: Terms = "all"
    then: Sequence[Block] = ()
    direction: Direction | None = None

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
        if self.direction is not None and self.direction.batches > 1 and (self.steps is None or self.batch is None):
            raise UserError("a direction of several minibatches is counted in steps: SVI(..., batch=B, steps=N)")
        if self.direction is not None and self.then:
            raise UserError("a direction is of one block of values: SVI(..., then=()) beside it")

    @property
    def _blocks(self) -> tuple[Block, ...]:
        return (Block(self.names, self.optimizer, self.terms, self.repeats), *self.then)

    @property
    def trains(self) -> Sequence[str]:
        """What is trained."""
        return tuple(name for block in self._blocks for name in block.names)

    def run(self, local: Local, phase: object) -> Local:
        """Trains the rows; see the class."""
        blocks = []
        for block in self._blocks:
            names = [k for name in block.names for k in local.method.expand(name, local.values)]
            blocks += [dataclasses.replace(block, names=names)] if names else []
        trained = [k for block in blocks for k in block.names]
        local = local.own(trained)  # without epochs, too: what is trained is what is sent
        steps = self.steps(local) if callable(self.steps) else self.steps
        if not blocks or not (self.epochs if steps is None else steps):
            return local
        # validation costs in a hot loop; gradients are wanted whatever the caller has switched off
        with pyro.validation_enabled(False), torch.enable_grad():
            if self.batch is None:
                for first, last in buckets(local.sizes):
                    self._whole(local.part(first, last), blocks, phase, self.epochs if steps is None else steps)
            else:
                self._minibatches(local, blocks, phase, steps)
        return local

    def _whole(self, local: Local, blocks: Sequence[Block], phase: object, steps: int) -> None:
        names = frozenset(k for block in blocks for k in block.names)
        batch = local.batch()
        trainers = [_Trainer(self, block, local) for block in blocks]
        noise = local.noise(phase, self.particles, local.sizes)
        values = {**local.values, **_joined(trainers)}
        frozen = FrozenFeatures.of(batch.x, names, values)
        for step in range(steps):
            noise.at(step)
            self._round([batch], trainers, values, noise, frozen, step)

    def _minibatches(self, local: Local, blocks: Sequence[Block], phase: object, steps: int | None) -> None:
        names = frozenset(k for block in blocks for k in block.names)
        each = self.direction.batches if self.direction is not None else 1
        plans = _plans(local, phase, self.batch or 1, self.epochs, None if steps is None else steps * each)
        frozen = FrozenFeatures(names, partial(standing_features, local))
        noise = local.noise(phase, self.particles)
        batches = minibatches(local, plans, frozen, noise)
        before: list[_Trainer | None] = [None] * len(blocks)
        alone = len(blocks) == 1 and blocks[0].repeats == 1 and self.direction is None
        # rows come largest first, so their plans longest first
        for first, last, active in spans([len(steps) for steps in plans]):
            part = local.part(0, active)
            trainers = [_Trainer(self, block, part, old) for block, old in zip(blocks, before, strict=True)]
            before = [*trainers]
            values, standing = {**part.values, **_joined(trainers)}, None
            for step in range(first, last, each):
                group = [*itertools.islice(batches, each)]
                if alone and step == first:
                    standing = standing_latent(local.method, group[0], values, noise, names)
                drawn = None if standing is None else standing.redrawn(noise)
                self._round(group, trainers, values, noise, frozen, step // each, drawn)

    def _round(
        self,
        batches: Sequence[Batch],
        trainers: Sequence[_Trainer],
        values: Mapping[str, Tensor],
        noise: ClientNoise,
        frozen: FrozenFeatures,
        step: int,
        latents: Mapping[str, Site] | None = None,
    ) -> None:
        """All blocks on one minibatch (or an iteration's several), one after the other."""
        turns, turn = sum(trainer.block.repeats for trainer in trainers), 0
        for trainer in trainers:
            for _ in range(trainer.block.repeats):
                if turns > 1 or self.direction is not None:  # (a turn has draws of its own)
                    noise.at(step * turns + turn, batches[0].num_clients)
                trainer.step(batches, values, noise, frozen, latents)
                turn += 1


def _plans(local: Local, phase: object, size: int, epochs: int, steps: int | None) -> list[Tensor]:
    """Every row's minibatches: of whole epochs, or as many as there are steps."""
    rows = range(len(local.clients))
    if steps is None:
        return [plan(local, row, phase, size, epochs) for row in rows]
    enough = [-(-steps // -(-n // size)) for n in local.sizes]
    return [plan(local, row, phase, size, enough[row])[:steps] for row in rows]


def _joined(trainers: Sequence[_Trainer]) -> State:
    """All leaves."""
    return {k: v for trainer in trainers for k, v in trainer.leaves.items()}


class _Trainer:
    """One block of values in training: its leaves, its optimiser.

    Args:
        svi, block: what is trained, and how.
        local: the rows that are.
        before: what trained them so far, with more rows; None at the beginning.
    """

    def __init__(self, svi: SVI, block: Block, local: Local, before: _Trainer | None = None) -> None:
        self.svi, self.block, self.method = svi, block, local.method
        self.leaves = leaves(local, block.names)
        self.optimizer: torch.optim.Optimizer | None = None
        if self.leaves:
            known = before.optimizer if before is not None else None
            self.optimizer = shrunk(known, block.optimizer, list(self.leaves.values()), len(local.clients))

    def step(
        self,
        batches: Sequence[Batch],
        values: Mapping[str, Tensor],
        noise: ClientNoise,
        frozen: FrozenFeatures,
        latents: Mapping[str, Site] | None,
    ) -> None:
        """One step of the optimiser; running statistics follow the batch.

        Args:
            batches: one, or as many as the direction needs.
            values: everything that the rows see, the leaves of all blocks among them.
            noise: at this step.
            frozen: outputs of networks that do not move.
            latents: the guide's, where they have been drawn already.
        """
        norms = Norms(batches[0].mask, frozen.moving)
        direction = self.svi.direction
        if direction is None:
            # (zero_grad costs more: it calls the profiler)
            for group in self.optimizer.param_groups if self.optimizer else ():
                for leaf in group["params"]:
                    leaf.grad = None
            loss = self._loss(batches[0], values, noise, frozen, latents, norms)
            if self.optimizer is not None:
                loss.backward(inputs=list(self.leaves.values()) if self.svi.then else None)
        else:

            def gradient(at: Mapping[str, Tensor], number: int) -> State:
                nonlocal norms
                batch = batches[number]
                norms = Norms(batch.mask, frozen.moving)
                noise.counts = _present(batch)
                leaves = {k: v.detach().requires_grad_() for k, v in at.items()}
                loss = self._loss(batch, {**values, **leaves}, noise, frozen, None, norms)
                slopes = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
                return {
                    k: torch.zeros_like(v) if g is None else g for (k, v), g in zip(leaves.items(), slopes, strict=True)
                }

            found = direction(gradient, {k: v.detach() for k, v in self.leaves.items()}, values)
            for name, leaf in self.leaves.items():
                leaf.grad = found[name].detach()
        if self.optimizer is not None:
            self.optimizer.step()
        for name, new in norms.running.items():
            values[name].copy_(new.unsqueeze(1))

    def _loss(
        self,
        batch: Batch,
        values: Mapping[str, Tensor],
        noise: ClientNoise,
        frozen: FrozenFeatures,
        latents: Mapping[str, Site] | None,
        norms: Norms,
    ) -> Tensor:
        """Minus the sum of the rows' objectives."""
        objective = elbo(
            self.method, batch, values, noise,
            frozen=frozen, moving=True, latents=latents, norms=norms, terms=self.block.terms,
        )  # fmt: skip
        if self.optimizer is not None and not objective.requires_grad:
            raise UserError(f"SVI of {', '.join(self.block.names)}: the ELBO does not depend on it")
        return -(objective / batch.n if self.svi.per == "example" else objective).sum()


def _present(batch: Batch) -> list[int]:
    """How many examples each row has in a batch."""
    return [batch.width] * batch.num_clients if batch.mask is None else batch.mask.sum(1).tolist()


@dataclass(frozen=True)
class Likeliest:
    """A personal number from a few that makes a client's ELBO largest: hard assignment (the MAP of a label).

    Args:
        name: the personal value, (1,).
        choices: how many; the value is one of 0 ... choices - 1, and the first of equals.
    """

    name: str
    choices: int

    @property
    def trains(self) -> Sequence[str]:
        """The value that is set."""
        return (self.name,)

    def run(self, local: Local, phase: object) -> Local:
        """Tries them all on all of a client's training data."""
        if self.name not in local.rows:
            raise UserError(f"Likeliest sets {self.name!r}, which personal() does not declare")
        found = []
        with pyro.validation_enabled(False):
            for first, last in buckets(local.sizes):
                part = local.part(first, last)
                batch, old = part.batch(), part.rows[self.name]
                heights = [
                    elbo(local.method, batch, {**part.values, self.name: torch.full_like(old, label)}, None)
                    for label in range(self.choices)
                ]
                # (one that is not a number is never the likeliest)
                heights = [h.nan_to_num(nan=-torch.inf) for h in heights]
                found.append(torch.stack(heights).argmax(0).view_as(old).to(old))
        return local.put({self.name: torch.cat(found)})


def running_statistics(names: Iterable[str], epochs: int, batch: int | None) -> SVI:
    """Runs model and guide over the data for the sake of batch norm alone: running statistics follow, nothing learns.

    For weights that were averaged, whose statistics nobody has seen yet (Izmailov et al., UAI 2018, section 3.2).

    Args:
        names: values among which are running statistics; the others stay.
        epochs: passes through a client's data.
        batch: examples at a time; None for all of them.
    """
    return SVI(sorted(filter(is_statistic, names)), epochs, sgd(0.0), batch)


def shrunk(
    old: torch.optim.Optimizer | None, make: MakeOptimizer, leaves: list[Tensor], active: int
) -> torch.optim.Optimizer:
    """An optimiser for the rows that are left, which remembers what the old one knew of them.

    A momentum moves rows without a gradient, too: rows that have finished must not be among its leaves.
    """
    new = make(leaves)
    if old is not None:
        for before, after in zip(old.param_groups[0]["params"], leaves, strict=True):
            new.state[after] = {
                k: v[:active] if torch.is_tensor(v) and v.shape == before.shape else v
                for k, v in old.state[before].items()
            }
    return new
