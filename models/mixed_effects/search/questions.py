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

from ..likelihood import containment
from ..likelihood.gaussian.cross_products import at_points, in_groups, packed_size, polynomial
from ..likelihood.gaussian.row_sums import clients_last, columns_of, counts_of
from ..likelihood.quadrature.integral import expansion, heights_at, passes
from ..likelihood.quadrature.region_nodes import node_count
from ..model.equations import MixedModel
from .boundary import NOT_YET

#: numbers that a message's part at many points holds, about; and how many points a round has, at least and at most: of
#: other responses than gaussian each one is a search of its own
MESSAGE_NUMBERS, POINTS, SEARCHED_POINTS = 8192, (16, 256), 128


class Phase(IntEnum):
    """What the rounds are about."""

    CLIMB, MODE, EXPLORE, DONE, PROFILE, RESTRICT = range(6)


#: phases that ask around one point
AROUND_ONE_POINT = (Phase.CLIMB, Phase.PROFILE, Phase.MODE, Phase.RESTRICT)


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
        if not self.method.exact:
            return self.method.regions * node_count(self.method) if self.method.regions else 1
        return packed_size(columns_of(self.method) - self.method.covariance.q - 1) * max(1, self.method.regions)

    @property
    def points(self) -> int:
        """Points of a round, a power of two."""
        least, most = POINTS
        most = most if self.method.exact else SEARCHED_POINTS
        return int(min(most, max(least, 2 ** ((MESSAGE_NUMBERS // self.cells).bit_length() - 1))))

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """Around one point, and at many; what a round is not about is zero."""
        k, cells, number = self.method.k, self.cells, torch.float64
        if self.method.exact:
            around = {"cross": (cells,), "cross_1": (k, cells), "cross_2": (k, k, cells), "many": (self.points, cells)}
        elif self.method.regions:
            m = k + self.method.covariances["outer_root"].q
            around = {
                "height": (cells,), "slope": (cells, m), "curvature": (cells, m, m), "many": (self.points, cells)
            }  # fmt: skip
        else:
            around = {"height": (), "slope": (k,), "curvature": (k, k), "many": (self.points,)}
        if self.method.restricted:
            around |= containment.sizes(self.method)
        return {
            name: Field(shape, number) for name, shape in {**around, "counts": (3 if self.method.slots else 2,)}.items()
        }

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """Each client's log likelihood as a function of the population: around a point, or at many; 1, n, groups."""
        shared, method = chunk.shared, self.method
        rows, device = len(chunk.clients), chunk.federation.device
        found = {
            name: torch.zeros((rows, *field.shape), dtype=field.dtype, device=device)
            for name, field in self.form({}).items()
        }
        found["counts"] = self.counts(chunk)
        phase = Phase(int(shared["effects.phase"]))
        if method.exact:
            gram, counted = clients_last(chunk.values["gram"]), chunk.values["rows"].squeeze(1).mT.contiguous()
            return {**found, **self.asked(gram, counted, shared)}
        if phase == Phase.RESTRICT:
            found |= containment.sums(method, chunk)
        if method.regions:
            return {**found, **self.of_regions(chunk, phase)}
        if phase in AROUND_ONE_POINT:
            return {**found, **self._around(chunk)}
        if phase == Phase.EXPLORE:
            points = shared["effects.points"]
            held = {k: v.expand(len(points), *v.shape) for k, v in self.held(shared).items()}
            found["many"] = heights_at(method, chunk, {**held, **self.method.parts(points)})
            return {**found, **(self._around(chunk) if self.between(shared) else {})}
        return found

    def _around(self, chunk: ClientChunk) -> State:
        """Height, slope and curvature at the one point."""
        values = {**self.held(chunk.shared), **self.method.parts(chunk.shared["effects.at"])}
        return expansion(self.method, chunk, list(self.method.sizes), values)

    @staticmethod
    def between(shared: Mapping[str, Tensor]) -> bool:
        """Whether a round of many points is about one point, too; see :mod:`.boundary`."""
        return "effects.boundary" in shared and bool((shared["effects.boundary"] == NOT_YET).any())

    def counts(self, chunk: ClientChunk) -> Tensor:
        """1, n, and how many groups it has inside, (S, 2 or 3)."""
        found = [torch.ones_like(chunk.n), chunk.n]
        if self.method.slots:
            if self.method.exact:
                rows = chunk.values["rows"].squeeze(1)
            else:
                rows = torch.cat([counts_of(self.method, part.batch()) for part in passes(self.method, chunk, 1)])
            found.append(rows[:, 3])
        return torch.stack([one.to(torch.float64) for one in found], 1)

    def of_regions(self, chunk: ClientChunk, phase: Phase) -> State:
        """What a round is about at the nodes of the clients' own regions."""
        method, shared = self.method, chunk.shared
        rows = torch.cat([counts_of(method, part.batch()) for part in passes(method, chunk, 1)]).mT
        own = (rows[2] - 1).long()
        if phase in AROUND_ONE_POINT:
            values = {**self.held(shared), **method.parts(shared["effects.at"])}
            nodes = shared["effects.nodes"][own]  # (S, K, q)
            at_nodes = repeated(chunk, nodes.shape[1]).put({"w": nodes.flatten(0, 1).unsqueeze(1)})
            found = expansion(method, at_nodes, [*method.sizes, "w"], values)
            each = {k: v.unflatten(0, nodes.shape[:2]) for k, v in found.items()}  # (S, K, *shape)
            return {k: in_groups(method, v, rows, 1) for k, v in each.items()}
        if phase == Phase.EXPLORE:
            points = shared["effects.points"]
            held = {k: v.expand(len(points), *v.shape) for k, v in self.held(shared).items()}
            nodes = shared["effects.many_nodes"][:, own].permute(1, 2, 0, 3)  # (S, K, M, q)
            at_nodes = repeated(chunk, nodes.shape[1]).put({"many": nodes.flatten(0, 1).unsqueeze(1)})
            heights = heights_at(method, at_nodes, {**held, **method.parts(points)}).unflatten(0, nodes.shape[:2])
            return {"many": in_groups(method, heights.mT, rows, -1)}  # (S, M, K)
        return {}

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
        if phase in AROUND_ONE_POINT:
            return {**found, **polynomial(self.method, gram, rows, shared["effects.at"])}
        if phase == Phase.EXPLORE:
            found["many"] = at_points(self.method, gram, rows, shared["effects.points"])
            if self.between(shared):
                found |= polynomial(self.method, gram, rows, shared["effects.at"])
        return found

    @staticmethod
    def held(shared: Mapping[str, Tensor]) -> State:
        """What is not learned."""
        return {k.removeprefix("held."): v for k, v in shared.items() if k.startswith("held.")}


def repeated(chunk: ClientChunk, times: int) -> ClientChunk:
    """Each row so many times: one computation for all nodes is faster than a small one for each."""
    return chunk.take([row for row in range(len(chunk.clients)) for _ in range(times)])
