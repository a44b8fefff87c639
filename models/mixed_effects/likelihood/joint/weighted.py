"""Several levels inside clients, with formulas of dispersion or residuals that correlate within series.

Blocks of sums are functions of the population's numbers, made of the rows at each point (:mod:`.weights`); all else is
that of one standard deviation and no correlation (:mod:`.packed`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.padding import buckets
from hierfl.errors import UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.base import LocalStep
from hierfl.inference.state import State

from ...model.equations import MixedModel
from ..gaussian.cross_products import in_groups
from ..gaussian.row_sums import counts_of
from .effects import Joint, conditional_of, joint_of, modes_of
from .gaussian import JointGaussian
from .jets import Jet
from .layout import Layout
from .packed import Reduced, packed_points, polynomial_of, values_of
from .products import products
from .sums import Blocks
from .weights import GAMMA, SERIAL, WeightedRows

#: numbers that are held at a time
NUMBERS_PER_PASS = 20_000_000


@dataclass(frozen=True)
class SchurOfEach:
    """The complement of :class:`.schur.Schur`, of sums that differ between points.

    Attributes:
        across: E, (D, S, g, q, m).
    """

    across: Tensor

    def __call__(self, p: Tensor) -> Tensor:
        """(D, S, m, m), of P (D, S, g, q, q)."""
        right = p * self.across if p.shape[-1] == 1 else p @ self.across
        return self.across.flatten(2, 3).mT @ right.flatten(2, 3)


@dataclass(frozen=True)
class AtPoints:
    """Blocks of S clients at points, made of their rows.

    Attributes:
        method: whose model.
        rows: of the clients.
    """

    method: MixedModel
    rows: WeightedRows

    @property
    def points(self) -> int:
        """How many go at a time."""
        layout, (clients, n, m) = Layout.for_method(self.method), self.rows.more.shape
        wide = layout.dense + m
        numbers_each = n * wide * max(part.level.q for part in layout.parts) + wide * (wide + 2 * layout.first.size)
        return max(1, NUMBERS_PER_PASS // (clients * numbers_each))

    def blocks(self, values: Mapping[str, Tensor]) -> tuple[Blocks, Tensor]:
        """The blocks at D points {name: (D, *shape)}, and log |W|, (D, S)."""
        weight, log_w = self.rows.weights.at(values)
        sums = products(Layout.for_method(self.method), self.rows.columns, weight, self.rows.more)
        return Blocks(*sums, self.rows.counts), log_w

    def reduced(self, values: State) -> tuple[Blocks, Reduced]:
        """The blocks at the same points, with what is left of them."""
        blocks, log_w = self.blocks(values)
        at = Reduced.from_blocks(self.method, blocks, SchurOfEach(blocks.across), _without_gamma(self.method, values))
        return blocks, at.with_volume(at.volume - log_w)


@dataclass(frozen=True)
class WeightedGaussian(JointGaussian):
    """The likelihood of :class:`.gaussian.JointGaussian`, which clients compute from their rows at each point.

    Args:
        method: whose model.
    """

    method: MixedModel

    def check(self) -> None:
        """Refuses what needs sums that are made once.

        Raises:
            UserError: for it.
        """
        super().check()
        s = self.method.settings
        if self.method.network.own and (s.kenward_roger or s.one_round):
            what = "kenward_roger" if s.kenward_roger else "one_round"
            raise UserError(f"{what} is of one residual deviation: no dispersion formula beside it")

    def personal(self) -> State:
        """Nothing."""
        return {}

    def steps(self) -> list[LocalStep]:
        """None."""
        return []

    def rows(self, chunk: ClientChunk) -> ClientChunk:  # type: ignore[override]
        """The rows themselves."""
        return chunk

    def counts(self, chunk: ClientChunk) -> Tensor:
        """One pass over the rows."""
        counts = torch.cat([counts_of(self.method, part.batch()) for part in _parts(chunk)])
        return torch.cat([torch.ones_like(counts[:, :1]), chunk.n.to(counts)[:, None], counts[:, 3:]], 1)

    def around(self, rows: ClientChunk, shared: Mapping[str, Tensor]) -> State:  # type: ignore[override]
        """See :func:`.packed.polynomial`."""
        numbers, parts = shared["effects.at"], list[State]()
        names = list(self.method.sizes)
        kind = GAMMA if self.method.network.own else SERIAL
        first = sum(self.method.sizes[name] for name in names[: names.index(kind)])
        for part in _parts(rows):
            own = WeightedRows.from_batch(self.method, part.batch())
            weight, log_w = own.weights.around(self.method.parts(numbers), first)
            every = products(
                Layout.for_method(self.method), own.columns, torch.stack(list(weight.parts.values())), own.more
            )
            blocks = [Jet(dict(zip(weight.parts, part_of_block.unbind(), strict=True))) for part_of_block in every]
            parts.append(polynomial_of(self.method, blocks, own.counts, log_w, numbers))
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def at_points(self, rows: ClientChunk, shared: Mapping[str, Tensor]) -> Tensor:  # type: ignore[override]
        """See :func:`.packed.at_points`."""
        clients = []
        for part in _parts(rows):
            at = AtPoints(self.method, WeightedRows.from_batch(self.method, part.batch()))
            some = [values_of(self.method, points) for points in shared["effects.points"].split(at.points)]
            clients.append(torch.cat([packed_points(at.reduced(values)[1]) for values in some]).transpose(0, 1))
        return self._in_groups(torch.cat(clients), rows)

    def modes(self, batch: Batch, values: State, shared: State) -> tuple[Tensor, Tensor]:
        """Modes from the sums at these values."""
        every = {k: v[None] for k, v in shared.items()}
        blocks, at = AtPoints(self.method, WeightedRows.from_batch(self.method, batch)).reduced(every)
        return modes_of(self.method, blocks, at, every)

    def conditional(self, chunk: ClientChunk, shared: State) -> State:
        """Exact moments."""
        values, parts = {k: v[None] for k, v in shared.items()}, list[State]()
        for part in _parts(chunk):
            blocks, at = AtPoints(self.method, WeightedRows.from_batch(self.method, part.batch())).reduced(values)
            parts.append(conditional_of(self.method, blocks, at, values))
        return {k: torch.cat([part[k] for part in parts]).unsqueeze(1) for k in parts[0]}

    def joint(self, chunk: ClientChunk, draws: State, phase: object) -> State:
        """Moments are the mixture's own."""
        states = []
        for part in _parts(chunk):
            at = AtPoints(self.method, WeightedRows.from_batch(self.method, part.batch()))
            states.append(joint_of(self.method, part, draws, phase, Joint(at.points, at.reduced)))
        return {k: torch.cat([state[k] for state in states]) for k in states[0]}

    def _in_groups(self, values: Tensor, chunk: ClientChunk) -> Tensor:
        rows = torch.cat([counts_of(self.method, part.batch()) for part in _parts(chunk)])
        return in_groups(self.method, values, rows.mT, -1)


def _without_gamma(method: MixedModel, values: State) -> State:
    """Values of a model whose rows have their precisions in G."""
    return {k: v for k, v in values.items() if k != GAMMA or not method.network.own}


def _parts(chunk: ClientChunk) -> Sequence[ClientChunk]:
    """Rows that are padded little."""
    return [chunk.part(first, last) for first, last in buckets(chunk.sizes)]
