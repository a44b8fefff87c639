"""What clients are asked about the population, and what they answer: their log marginal likelihood, around one point or
at many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

import torch
from torch import Tensor

from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.messages.form import Field, Form
from hierfl.inference.state import State

from .cross_products import at_points, clients_last, packed_size, polynomial
from .model import MixedModel
from .quadrature import expansion, heights_at

#: numbers that a message's part at many points holds, about; and how many points a round has
MESSAGE_NUMBERS, POINTS = 8192, (16, 256)


class Phase(IntEnum):
    """What the rounds are about."""

    CLIMB, MODE, EXPLORE, DONE, PROFILE = range(5)


@dataclass(frozen=True)
class Likelihoods:
    """Clients' log likelihoods as functions of the population: what a round asks of them is in the shared values.

    Args:
        method: whose population.
    """

    method: MixedModel
    sends_gradients: ClassVar[bool] = False

    @property
    def cells(self) -> int:
        """Numbers of a client's likelihood at one point."""
        return packed_size(len(self.method.network.fixed)) if self.method.exact else 1

    @property
    def points(self) -> int:
        """Points of a round, a power of two."""
        least, most = POINTS
        return int(min(most, max(least, 2 ** ((MESSAGE_NUMBERS // self.cells).bit_length() - 1))))

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """Around one point, and at many; what a round is not about is zero."""
        k, cells, number = self.method.k, self.cells, torch.float64
        if self.method.exact:
            around = {"cross": (cells,), "cross_1": (k, cells), "cross_2": (k, k, cells), "many": (self.points, cells)}
        else:
            around = {"height": (), "slope": (k,), "curvature": (k, k), "many": (self.points,)}
        return {name: Field(shape, number) for name, shape in {**around, "counts": (2,)}.items()}

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """Each client's log likelihood as a function of the population: around one point, or at many; 1, and n."""
        shared, method = chunk.shared, self.method
        rows, device = len(chunk.clients), chunk.federation.device
        found = {
            name: torch.zeros((rows, *field.shape), dtype=field.dtype, device=device)
            for name, field in self.form({}).items()
        }
        found["counts"] = torch.stack([torch.ones_like(chunk.n), chunk.n], 1).to(torch.float64)
        phase = Phase(int(shared["effects.phase"]))
        if method.exact:
            gram, counted = clients_last(chunk.values["gram"]), chunk.values["rows"].squeeze(1).mT.contiguous()
            return {**found, **self.asked(gram, counted, shared)}
        if phase in (Phase.CLIMB, Phase.PROFILE, Phase.MODE):
            values = {**self.held(shared), **self.method.parts(shared["effects.at"])}
            return {**found, **expansion(method, chunk, list(self.method.sizes), values)}
        if phase == Phase.EXPLORE:
            points = shared["effects.points"]
            held = {k: v.expand(len(points), *v.shape) for k, v in self.held(shared).items()}
            return {**found, "many": heights_at(method, chunk, {**held, **self.method.parts(points)})}
        return found

    def asked(self, gram: Tensor, rows: Tensor, shared: Mapping[str, Tensor]) -> State:
        """What a round is about, of a gaussian response.

        Args:
            gram, rows: as for :func:`.cross_products.packed`, of S clients.
            shared: as broadcast.
        """
        phase, k = Phase(int(shared["effects.phase"])), self.method.k
        count, like = rows.shape[-1], gram
        found = {
            "cross": like.new_zeros(count, self.cells), "cross_1": like.new_zeros(count, k, self.cells),
            "cross_2": like.new_zeros(count, k, k, self.cells), "many": like.new_zeros(count, self.points, self.cells),
        }  # fmt: skip
        if phase in (Phase.CLIMB, Phase.PROFILE, Phase.MODE):
            return {**found, **polynomial(self.method, gram, rows, shared["effects.at"])}
        if phase == Phase.EXPLORE:
            return {**found, "many": at_points(self.method, gram, rows, shared["effects.points"])}
        return found

    @staticmethod
    def held(shared: Mapping[str, Tensor]) -> State:
        """What is not learned."""
        return {k.removeprefix("held."): v for k, v in shared.items() if k.startswith("held.")}
