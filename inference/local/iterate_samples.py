"""What gradient descent passes through, as samples of a posterior."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from hierfl.devices import send
from hierfl.errors import UserError, unknown

from ..clients.chunk import ClientChunk
from .svi import SVI

#: what a pass through the data leaves of a value: the mean of its iterates, or the last of them
Kept = Literal["mean", "last"]


@dataclass(frozen=True)
class IterateSamples:
    """Gradient descent, each of whose passes through a client's data leaves one sample of a value's posterior.

    Stochastic gradient descent of a constant step does not come to rest: its iterates are about draws of a posterior
    (Mandt, Hoffman and Blei, JMLR 2017), and so is the mean of a pass's (FedPA; Al-Shedivat et al., ICLR 2021). A row's
    pass has as many steps as the row has minibatches, whatever others have.

    Args:
        descent: SVI, in minibatches, so many epochs.
        name: the value, personal or a shared one of which each row trains a copy.
        burn: passes, the first, that leave no sample.
        use: from the samples (S, L, *shape), L = epochs - burn, and the rows as the last step has left them, to what
            the rows' value becomes, (S, *shape).
        keep: what a pass leaves.
    """

    descent: SVI
    name: str
    burn: int
    use: Callable[[Tensor, ClientChunk], Tensor]
    keep: Kept = "mean"

    def __post_init__(self) -> None:
        if self.keep not in get_args(Kept):
            raise unknown("sample of a pass (IterateSamples' keep)", self.keep, get_args(Kept))
        if not 0 <= self.burn < self.descent.epochs:
            raise UserError(f"burn={self.burn} of epochs={self.descent.epochs} passes leaves none that gives a sample")
        several = self.descent.transform is not None and self.descent.transform.batches > 1
        if self.descent.batch is None or self.descent.steps is not None or several:
            raise UserError("IterateSamples counts passes of single minibatches: SVI(names, epochs, optimizer, batch)")

    @property
    def trains(self) -> Sequence[str]:
        """What the descent trains."""
        return self.descent.trains

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Descends, and replaces the value by what the samples say."""
        chunk = chunk.own([self.name])
        rows, shape = len(chunk.clients), chunk.values[self.name].shape[2:]
        slots = self.descent.epochs - self.burn + 1  # the first for what is burnt
        passed = chunk.values[self.name].new_zeros((rows * slots, shape.numel()))
        position, weight = self._plan(chunk, slots)

        def watch(part: ClientChunk, first: int, number: int) -> None:
            part_rows = slice(first, first + len(part.clients))
            value = part.values[self.name].detach().flatten(1)
            passed.index_add_(0, position[number, part_rows], weight[number, part_rows, None] * value)

        chunk = replace(self.descent, watch=watch).run(chunk, phase)
        samples = passed.view(rows, slots, *shape)[:, 1:]
        return chunk.put({self.name: self.use(samples, chunk).unsqueeze(1)})

    def _plan(self, chunk: ClientChunk, slots: int) -> tuple[Tensor, Tensor]:
        """The place and the weight of each step's iterate of each row, (steps, S)."""
        assert self.descent.batch is not None
        steps_of_pass = -(-torch.tensor(chunk.sizes) // self.descent.batch)  # steps of a pass
        number = torch.arange(int(steps_of_pass.max()) * self.descent.epochs)[:, None]
        sample = (number // steps_of_pass - self.burn + 1).clamp(0, slots - 1)
        position = torch.arange(len(steps_of_pass)) * slots + sample
        weight = 1 / steps_of_pass.double() if self.keep == "mean" else ((number + 1) % steps_of_pass == 0).double()
        weight = weight.expand(position.shape)
        device, dtype = chunk.federation.device, chunk.federation.dtype
        return send(position, device), send(weight.contiguous(), device).to(dtype)
