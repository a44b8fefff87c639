"""A gaussian fit in one round: each client sends its cross-products, and the server does by itself what is otherwise
asked of the clients round by round.

Nothing is lost: the likelihood is a function of G = [Z X y]^T W [Z X y] of each client (Luo et al., Nature
Communications 2022, call it lossless). The price is that the server sees every client's G, not only sums: of a client
with fewer rows than columns it could work out the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from hierfl.data.tables import ROUNDS
from hierfl.errors import UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.messages.form import Field, Form
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.state import State
from hierfl.plurals import counted

from ..model.equations import MixedModel
from .loop import PopulationSearch, skipped
from .requests import Asked, Phase, carried


@dataclass(frozen=True)
class CrossProducts:
    """Each client's sums of products of its columns and its response: the server sees them one by one, not their sum.

    Args:
        method: whose population.
    """

    method: MixedModel
    sends_gradients: ClassVar[bool] = False

    @cached_property
    def search(self) -> PopulationSearch:
        """What the server does."""
        return PopulationSearch(self.method)

    @property
    def moving(self) -> list[str]:
        """See :attr:`.search.loop.PopulationSearch.moving`."""
        return self.search.moving

    @property
    def columns(self) -> int:
        """m = q + p + 1."""
        return self.method.covariance.q + len(self.method.network.fixed) + 1

    @property
    def least_rows(self) -> int:
        """The least rows of a client: as the setting says, or more than columns."""
        return self.method.settings.least_rows or self.columns + 1

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """G's upper triangle, row by row; n and the sum of log weights; 1 and n."""
        number, upper = torch.float64, self.columns * (self.columns + 1) // 2
        return {
            "gram": Field((upper,), number, individual=True), "rows": Field((2,), number, individual=True),
            "counts": Field((2,), number, rows=lambda counts: counts[:, 1]),
        }  # fmt: skip

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """Each client's sums of products of its columns and its response, and how many rows they are of."""
        few = [j for j, n in zip(chunk.clients, chunk.sizes, strict=True) if n < self.least_rows]
        if few:
            name, n = chunk.federation.ids[few[0]], len(chunk.federation.train[few[0]])
            raise UserError(
                f"one_round sends each client's cross-products, and client {name!r} has {counted(n, 'row')}, which "
                f"could be worked out from them: it needs {self.least_rows} (least_rows)"
            )
        up, across = torch.triu_indices(self.columns, self.columns, device=chunk.federation.device)
        return {
            "gram": chunk.values["gram"].squeeze(1)[:, up, across], "rows": chunk.values["rows"].squeeze(1)[:, :2],
            "counts": self.method.likelihood.counts(chunk),
        }  # fmt: skip

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """The whole search, asked of the cross-products."""
        if int(context.reported) < context.num_clients:
            return skipped(old)
        if Phase(int(old["effects.phase"])) == Phase.DONE:
            return old
        m = self.columns
        up, across = torch.triu_indices(m, m)
        gram = total["gram"].new_zeros(context.num_clients, m, m)
        gram[:, up, across] = total["gram"]
        gram[:, across, up] = total["gram"]
        rows = gram.permute(1, 2, 0).contiguous(), total["rows"].T.contiguous()
        state, memory = dict(old), dict[str, Tensor]()
        for number in range(1, ROUNDS + 1):
            asked = Asked(self.method, state, rows)
            at_points = [request for request in carried(self.method, state) if request.at]
            replies = self.search.replies(asked, at_points, len(gram), gram.device)
            sums = {name: value.sum(0) for name, value in replies.items()} | {"counts": total["counts"]}
            state = self.search.update(state, sums, replace(context, rule_state=memory, round=number))
            if Phase(int(state["effects.phase"])) == Phase.DONE:
                break
        return state
