"""One block of values in training: its leaves, its optimiser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.errors import UserError
from hierfl.nn.layers.batch_norm import Norms
from hierfl.nn.likelihoods import RESPONSE_SD
from hierfl.ppl.frozen_features import FrozenFeatures
from hierfl.ppl.restrict import Site
from hierfl.rng import ClientNoise

from ..clients.chunk import ClientChunk
from ..clients.gradients import leaves
from ..objective.elbo import elbo
from ..state import State
from .block import Block, Per
from .optimizers import narrow_optimizer, step_on_device


def all_leaves(trainers: Sequence[Trainer]) -> State:
    """All leaves."""
    return {k: v for trainer in trainers for k, v in trainer.leaves.items()}


class Trainer:
    """One block of values in training: its leaves, its optimiser.

    Args:
        block: what is trained, and how.
        chunk: the rows that are.
        per: of what the objective is.
        several: whether other blocks are trained on the same minibatches.
    """

    def __init__(
        self,
        block: Block,
        chunk: ClientChunk,
        per: Per,
        several: bool,
    ) -> None:
        self.block, self.method = block, chunk.method
        self.per, self.several = per, several
        self.leaves = leaves(chunk, block.names)
        self.recorded, self.rows = chunk.recorder is not None, len(chunk.clients)
        self.optimizer = block.optimizer(list(self.leaves.values())) if self.leaves else None

    def narrow(self, chunk: ClientChunk) -> None:
        """Goes on with the rows that are left, the first ones."""
        if len(chunk.clients) < self.rows:
            self.leaves, self.rows = leaves(chunk, self.block.names), len(chunk.clients)
            if self.optimizer is not None:
                narrow_optimizer(self.optimizer, list(self.leaves.values()))

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
            batches: one, or as many as the transform needs.
            values: everything that the rows see, the leaves of all blocks among them.
            noise: at this step.
            frozen: outputs of networks that do not move.
            latents: the guide's, where they have been drawn already.
        """
        norms = Norms(batches[0].mask, frozen.moving)
        transform = self.block.transform
        if self.several:  # another block may have leaves of its own over the same values
            values = {**values, **self.leaves}
        if transform is None:
            # zero_grad costs more: it calls the profiler.
            for group in self.optimizer.param_groups if self.optimizer else ():
                for leaf in group["params"]:
                    leaf.grad = None
            loss = self._loss(batches[0], values, noise, frozen, latents, norms)
            if self.optimizer is not None:
                loss.backward(inputs=list(self.leaves.values()) if self.several else None)
        else:
            turn = noise.step

            def gradient(at: Mapping[str, Tensor], number: int) -> State:
                nonlocal norms
                batch = batches[number]
                norms = Norms(batch.mask, frozen.moving)
                noise.counts = batch.present()
                if noise.step != turn + number:  # each minibatch has draws of its own
                    noise.at(turn + number)
                leaves = {k: v.detach().requires_grad_() for k, v in at.items()}
                loss = self._loss(batch, {**values, **leaves}, noise, frozen, None, norms)
                slopes = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
                return {
                    k: torch.zeros_like(v) if g is None else g for (k, v), g in zip(leaves.items(), slopes, strict=True)
                }

            directions = transform(gradient, {k: v.detach() for k, v in self.leaves.items()}, values)
            noise.counts = batches[0].present()  # of which all other steps are
            for name, leaf in self.leaves.items():
                leaf.grad = directions[name].detach()
        if self.optimizer is not None and self.recorded:
            step_on_device(self.optimizer)
        elif self.optimizer is not None:
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
        sd = values.get(RESPONSE_SD)
        if sd is not None and (self.block.terms == "all" or (self.block.terms == "data" and self.block.transform)):
            # A learned variance divides the likelihood's curvature, and would multiply the length of a step; where the
            # data's terms alone are followed the step is a gradient that is sent.
            objective = objective * sd.detach().square().squeeze(-1)
        return -(objective / batch.n if self.per == "example" else objective).sum()
