"""Likelihoods of clients in groups. Clients answer at nodes of their group's effects, and the server integrates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from hierfl.errors import UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.state import State

from ...model.levels import Level
from ...model.names import fixed_values
from ..gaussian.cross_products import in_groups
from ..gaussian.row_sums import counts_of
from ..protocol import Coefficients, Drawn, Normals
from .integral import expansion, heights_at, passes
from .likelihood import Quadrature
from .nodes import REGION_NODES
from .region_nodes import (
    MAX_NODE_MOVES,
    MOVED_NODES,
    RegionExpansion,
    drawn_regions,
    log_integrals,
    moved_heights,
    node_count,
)


@dataclass(frozen=True)
class AtNodes(Quadrature):
    """Heights at the nodes of each group of clients, see :mod:`.region_nodes`."""

    keeps_points: ClassVar[bool] = True
    both_at_once: ClassVar[bool] = False
    digits: ClassVar[float] = MOVED_NODES

    def check(self) -> None:
        """Refuses more effects of a group than there are nodes for."""
        super().check()
        names = [name for level in self.method.above for name in level.grouping.names]
        if len(names) not in REGION_NODES:
            raise UserError(
                f"groups of clients have at most {max(REGION_NODES)} random effects of a {self.method.network.family} "
                f"response, not {len(names)}"
            )

    @property
    def level(self) -> Level:
        """The groups of clients."""
        return self.method.above[0]

    @property
    def cells(self) -> int:
        """A height for each node of each group."""
        return self.level.groups * node_count(self.method)

    def form(self, points: int) -> dict[str, tuple[int, ...]]:
        """Derivatives are in the groups' effects, too."""
        m, cells = self.method.k + self.level.q, self.cells
        return {"height": (cells,), "slope": (cells, m), "curvature": (cells, m, m), "many": (points, cells)}

    def around(self, rows: ClientChunk, shared: Mapping[str, Tensor]) -> State:
        """Likelihoods at the nodes of the clients' own groups; those of others are zero."""
        method, counted = self.method, self._counted(rows)
        values = {**fixed_values(shared), **method.parts(shared["effects.at"])}
        nodes = shared["effects.nodes"][(counted[2] - 1).long()]  # (S, K, q)
        at_nodes = repeated(rows, nodes.shape[1]).put({"w": nodes.flatten(0, 1).unsqueeze(1)})
        terms = expansion(method, at_nodes, [*method.sizes, "w"], values)
        by_node = {k: v.unflatten(0, nodes.shape[:2]) for k, v in terms.items()}  # (S, K, *shape)
        return {k: in_groups(method, v, counted, 1) for k, v in by_node.items()}

    def at_points(self, rows: ClientChunk, shared: Mapping[str, Tensor]) -> Tensor:
        """Likelihoods at the nodes of each point."""
        counted = self._counted(rows)
        nodes = shared["effects.many_nodes"][:, (counted[2] - 1).long()].permute(1, 2, 0, 3)  # (S, K, M, q)
        at_nodes = repeated(rows, nodes.shape[1]).put({"many": nodes.flatten(0, 1).unsqueeze(1)})
        heights = heights_at(self.method, at_nodes, self.points(shared)).unflatten(0, nodes.shape[:2])
        return in_groups(self.method, heights.mT, counted, -1)  # (S, M, K)

    def _counted(self, chunk: ClientChunk) -> Tensor:
        return torch.cat([counts_of(self.method, part.batch()) for part in passes(self.method, chunk, 1)]).mT

    # -- what the server makes of sums --------------------------------------------------------------------------------

    def height(
        self,
        sums: Mapping[str, Tensor],
        start: Tensor,
        step: Tensor,
        nodes: RegionExpansion,
        coefficients: Coefficients,
    ) -> Tensor:
        """The criterion by quadrature of parabolas."""
        return moved_heights(self.method, sums, nodes, start, step)

    def heights(self, many: Tensor, numbers: Tensor, nodes: RegionExpansion, coefficients: Coefficients) -> Tensor:
        """The criterion by quadrature."""
        u, factor = nodes.nodes(self.method, numbers)
        return log_integrals(many.unflatten(-1, u.shape[1:3]), u, factor)

    def estimated(
        self, sums: Mapping[str, Tensor], numbers: Tensor, nodes: RegionExpansion, coefficients: Coefficients
    ) -> State:
        """Effects of groups of clients."""
        return {self.level.effects: drawn_regions(self.method, sums["height"][None], nodes, numbers[None], None)[0]}

    def drawn(
        self, many: Tensor, points: Tensor, at: Tensor, drawn: Drawn, nodes: RegionExpansion,
        coefficients: Coefficients, normals: Normals,
    ) -> Drawn:  # fmt: skip
        """Effects of groups of clients are drawn given the numbers."""
        draws, middle = drawn
        w = drawn_regions(self.method, many[at], nodes, draws, partial(normals, self.level.effects))
        return Drawn(torch.cat([draws, w.flatten(1)], -1), torch.cat([middle, w.mean(0).flatten()]))

    # -- nodes ------------------------------------------------------------------------------------------------------

    def questions(self, memory: Mapping[str, Tensor], at: Tensor, points: Tensor) -> State:
        """The nodes."""
        expansion = self.known(memory, before=False)
        return {"nodes": expansion.effects(self.method, at), "many_nodes": expansion.effects(self.method, points)}

    def moved(self, state: State, total: State, memory: State) -> bool:
        """Whether the nodes have to move."""
        before = self.known(memory, before=False)
        expansion = RegionExpansion.from_sums(self.method, total, state["at"], state["nodes"])
        memory.update({f"before.{k}": v for k, v in before.state().items()})
        memory.update(expansion.state())
        tries = memory.get("tries", torch.zeros(()).double())
        moved = not expansion.near(self.method, before, state["at"]) and int(tries) < MAX_NODE_MOVES
        memory["tries"] = tries + 1 if moved else 0 * tries
        return moved

    def known(self, memory: Mapping[str, Tensor], *, before: bool) -> RegionExpansion:
        """What is known of the groups' effects."""
        kept = {k.removeprefix("before."): v for k, v in memory.items() if k.startswith("before.")}
        return RegionExpansion.read(self.method, kept if before else memory)


def repeated(chunk: ClientChunk, times: int) -> ClientChunk:
    """Each row repeated so many times: one computation for all nodes is faster than a small one for each."""
    return chunk.take([row for row in range(len(chunk.clients)) for _ in range(times)])
