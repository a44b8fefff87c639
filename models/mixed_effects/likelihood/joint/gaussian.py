"""The likelihood of a gaussian response with several levels inside clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.base import LocalStep
from hierfl.inference.state import State

from ...model.equations import MixedModel
from ..gaussian.likelihood import Gaussian
from .effects import conditional, joint, modes
from .layout import Layout
from .packed import at_points, polynomial
from .sums import Blocks, JointSums, blocks_of, shapes


@dataclass(frozen=True)
class JointGaussian(Gaussian):
    """The gaussian likelihood from sums in blocks; what is sent is as of :class:`~..gaussian.likelihood.Gaussian`.

    Args:
        method: whose model.
    """

    method: MixedModel

    def check(self) -> None:
        """Refuses more effects than a dense matrix can have."""
        Layout.for_method(self.method)

    def personal(self) -> State:
        """See :class:`.sums.Blocks`."""
        return {name: torch.zeros(shape) for name, shape in shapes(self.method).items()}

    def steps(self) -> list[LocalStep]:
        """One pass over the rows."""
        return [JointSums(self.method)]

    def rows(self, chunk: ClientChunk) -> Blocks:  # type: ignore[override]
        """Sums of products of the clients' rows."""
        return blocks_of(chunk)

    def counts(self, chunk: ClientChunk) -> Tensor:
        """Counts by the protocol, from the sums of products."""
        rows = chunk.values["rows"].squeeze(1)
        return torch.cat([torch.ones_like(rows[:, :1]), chunk.n.to(rows)[:, None], rows[:, 3:]], 1)

    def around(self, rows: Blocks, shared: Mapping[str, Tensor]) -> State:  # type: ignore[override]
        """See :func:`.packed.polynomial`."""
        return polynomial(self.method, rows, shared["effects.at"])

    def at_points(self, rows: Blocks, shared: Mapping[str, Tensor]) -> Tensor:  # type: ignore[override]
        """See :func:`.packed.at_points`."""
        return at_points(self.method, rows, shared["effects.points"])

    def modes(self, batch: Batch, values: State, shared: State) -> tuple[Tensor, Tensor]:
        """Modes from the sums of products."""
        return modes(self.method, Blocks(*(values[name].squeeze(1) for name in Blocks._fields)), shared)

    def conditional(self, chunk: ClientChunk, shared: State) -> State:
        """Exact moments."""
        return conditional(self.method, chunk, shared)

    def joint(self, chunk: ClientChunk, draws: State, phase: object) -> State:
        """Moments are the mixture's own."""
        return joint(self.method, chunk, draws, phase)
