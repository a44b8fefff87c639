"""SVI whose gradients have noise inside the client: DP-SGD for any Pyro model and guide of the plate.

Each step draws a Poisson sample of the client's examples. Their gradients are clipped one by one and added up, noise is
added, and the sum is divided by the sampling rate. Terms without data (KL, priors) follow without noise. Momentum, Adam
and gradient transforms use noisy gradients alone. (Abadi et al., Deep learning with differential privacy, CCS 2016.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyro
import torch
from torch import Tensor

from hierfl.errors import UserError
from hierfl.nn.likelihoods import RESPONSE_SD
from hierfl.ppl.frozen_features import FrozenFeatures
from hierfl.rng import ClientNoise

from ..clients.chunk import ClientChunk
from ..clients.gradients import leaves
from ..clients.minibatches import constant_features
from ..local.block import Block
from ..local.svi import SVI
from ..objective.elbo import elbo
from ..state import State
from .examples import clipped_sums
from .sources import grid, noise_sd
from .step_noise import step_noise


@dataclass(frozen=True)
class PrivateSVI:
    """The steps of an SVI, with the noise that the fit's plan has for them (``chunk.privacy``).

    Args:
        step: the plain ones.
        steps: how many, by round.
        part: the mechanism's name in the plan.
        rate: the probability with which an example is in a step's sample.
        rows: public number of rows of a client; n_j plays no part.
        observe: is shown norms of gradients before they are clipped, for measurements in simulations.
    """

    step: SVI
    steps: Callable[[int], int]
    part: str
    rate: float
    rows: int
    observe: Callable[[Tensor], None] | None = None

    @property
    def trains(self) -> Sequence[str]:
        """What is trained."""
        return self.step.trains

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Trains the rows, all of them for the same number of steps."""
        blocks = self.step.blocks_of(chunk)
        chunk = chunk.own(name for block in blocks for name in block.names)
        count = self.steps(chunk.round)
        if not blocks or not count:
            return chunk
        with pyro.validation_enabled(False), torch.enable_grad():
            self._take(chunk, blocks, phase, count)
        return chunk

    def _take(self, chunk: ClientChunk, blocks: Sequence[Block], phase: object, count: int) -> None:
        names = frozenset(name for block in blocks for name in block.names)
        frozen = FrozenFeatures(names, partial(constant_features, chunk))
        turns = sum(block.turns for block in blocks)
        noise = chunk.noise(phase, self.step.particles).reading(count * turns)
        trained = [(block, leaves(chunk, block.names)) for block in blocks]
        optimizers = [block.optimizer(list(own.values())) for block, own in trained]
        turn = 0
        for _ in range(count):
            for (block, own), optimizer in zip(trained, optimizers, strict=True):
                for _ in range(block.repeats):
                    gradient = self._direction(chunk, block, own, noise, frozen, phase, turn)
                    for name, leaf in own.items():
                        leaf.grad = gradient[name]
                    optimizer.step()
                    turn += block.batches

    def _direction(
        self, chunk: ClientChunk, block: Block, own: State, noise: ClientNoise, frozen: FrozenFeatures, phase: object,
        turn: int,
    ) -> State:  # fmt: skip
        """What the optimiser is given for a gradient, {name: (S, 1, *shape)}."""

        taken: list[int] = []

        def gradient(at: Mapping[str, Tensor], number: int) -> State:
            # Another gradient on the same minibatch is another release: it has a sample and noise of its own.
            what = phase, turn + number, *([taken.count(number)] if number in taken else [])
            taken.append(number)
            if len(taken) > block.gradients:
                name = type(block.transform).__name__
                raise UserError(f"{name} takes more than {block.gradients} gradients: its 'gradients' says how many")
            noise.at(turn + number)
            return self._gradient(chunk, block, dict(at), noise, frozen, what)

        now = {k: v.detach() for k, v in own.items()}
        if block.transform is None:
            return gradient(now, 0)
        return {k: v.detach() for k, v in block.transform(gradient, now, chunk.view).items()}

    def _gradient(
        self, chunk: ClientChunk, block: Block, at: State, noise: ClientNoise, frozen: FrozenFeatures,
        what: tuple[object, ...],
    ) -> State:  # fmt: skip
        """The gradient of minus the rows' objectives, the data's part with noise."""
        values = {**chunk.view, **at}
        total = {k: torch.zeros_like(v) for k, v in at.items()}
        if block.terms != "data":
            total = _prior_gradient(chunk, at, values, noise, self.rows)
        if block.terms != "prior":
            flat = self._noisy(chunk, at, values, noise, frozen, what)
            parts = flat.split([v[0].numel() for v in at.values()], 1)
            total = {k: v + part.view_as(v).to(v) for (k, v), part in zip(total.items(), parts, strict=True)}
        sd = values.get(RESPONSE_SD)
        by = -1.0 / self.rows if self.step.per == "example" else -1.0
        factor = by if sd is None else by * sd.detach().square()
        return {k: v * _like(factor, v) for k, v in total.items()}

    def _noisy(
        self, chunk: ClientChunk, at: State, values: State, noise: ClientNoise, frozen: FrozenFeatures,
        what: tuple[object, ...],
    ) -> Tensor:  # fmt: skip
        """An estimate of the gradient of the data's terms, (S, entries), by a sample, with noise."""
        privacy = chunk.privacy
        if privacy is None:
            raise ValueError("private steps are of a fit with noise")
        drawn, keys, width = step_noise(privacy), chunk.keys, max(chunk.sizes)
        chosen = torch.arange(width) < torch.tensor(chunk.sizes)[:, None]
        if self.rate < 1:
            chosen &= drawn.coins(keys, width, self.rate, chunk.round, self.part, *what)
        total = clipped_sums(chunk, chosen, at, values, noise, frozen, self.rows, privacy.clip, self.observe)
        if multiplier := privacy.plan.multiplier(self.part):
            sd = noise_sd(total.shape[1], privacy.clip * privacy.patient_rows, multiplier)
            step = grid(sd)
            added = drawn.gaussian(keys, total.shape[1], sd, step, chunk.round, self.part, *what)
            total = (total / step).round_() * step + added.to(total.device)
        return total / self.rate


def _prior_gradient(chunk: ClientChunk, at: State, values: State, noise: ClientNoise, rows: int) -> State:
    """The gradient of the terms of the ELBO that need no data, at rows without any: {name: (S, 1, *shape)}."""
    template = chunk.federation.template(len(chunk.clients))
    template.n.fill_(rows)
    own = {k: v.detach().requires_grad_() for k, v in at.items()}
    objective = elbo(chunk.method, template, {**values, **own}, noise, moving=True, terms="prior")
    if not objective.requires_grad:
        return {k: torch.zeros_like(v) for k, v in at.items()}
    slopes = torch.autograd.grad(objective.sum(), list(own.values()), allow_unused=True)
    return {k: torch.zeros_like(v) if g is None else g for (k, v), g in zip(own.items(), slopes, strict=True)}


def _like(factor: float | Tensor, value: Tensor) -> float | Tensor:
    """A factor of all rows, or (S, 1) of each, beside (S, 1, *shape)."""
    if isinstance(factor, float) or factor.dim() == 0:
        return factor
    return factor.reshape(-1, *[1] * (value.dim() - 1))


def refuse_odd(step: SVI) -> None:
    """Refuses SVI whose steps are more than gradients.

    Raises:
        UserError: for a watched one, and for one that conditions on a part of the examples.
    """
    names = ", ".join(step.trains)
    if step.watch is not None:
        raise UserError(f"SVI of {names} is watched: what it passes through would leave without noise (dp='site')")
    if step.predicts is not None:
        raise UserError(f"SVI of {names} conditions on a part of the examples, which has no noise (dp='site')")
