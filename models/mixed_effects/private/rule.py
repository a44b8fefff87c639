"""The server's part of a fit with noise inside clients: one round, in which each client's noisy sums come.

The noise hides a patient from the server, too: messages are seen one by one. The search is asked of them as of
cross-products without noise (:mod:`..search.one_round`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from hierfl.data.tables import ROUNDS
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.messages.form import Field, Form
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.state import State

from ..likelihood.protocol import Coefficients
from ..search.loop import PopulationSearch, skipped
from ..search.requests import Asked, Phase, carried
from .release import unpacked_products
from .working import USUAL
from .working_likelihood import NoisyWorking
from .working_release import WorkingRelease, message_parts

if TYPE_CHECKING:
    from ..model.equations import MixedModel


@dataclass(frozen=True)
class NoisyProducts:
    """Each client's noisy sums of products.

    Args:
        method: whose population, with ``private`` set.
    """

    method: MixedModel
    sends_gradients: ClassVar[bool] = False

    @cached_property
    def search(self) -> PopulationSearch:
        """What the server does."""
        return PopulationSearch(self.method)

    @property
    def moving(self) -> list[str]:
        """See :attr:`..search.loop.PopulationSearch.moving`."""
        return self.search.moving

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """Noisy sums alone: how many rows there are is one of them."""
        private = self.method.private
        assert private is not None
        return {"products": Field((private.numbers,), torch.float64, individual=True)}

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """The noisy products that were released."""
        return {"products": chunk.values["released"].squeeze(1)}

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """The whole search."""
        if int(context.reported) < context.num_clients:
            return skipped(old)
        if Phase(int(old["effects.phase"])) == Phase.DONE:
            return old
        private, likelihood = self.method.private, self.method.likelihood
        assert private is not None
        noisy = unpacked_products(total["products"].cpu(), len(private.columns.names) + 1)
        moments = likelihood.moments(noisy)  # type: ignore[attr-defined]
        return self.searched(old, moments, len(noisy), float(noisy[:, 0, 0].clamp_min(0).sum()), context)

    def searched(self, old: State, moments: Any, clients: int, rows: float, context: AggregationContext) -> State:
        """The shared values after the whole search of some moments."""
        state, memory = dict(old), dict[str, Tensor]()
        counts = torch.tensor([clients, round(rows)], dtype=torch.float64)
        for number in range(1, ROUNDS + 1):
            asked = Asked(self.method, state, moments)
            at_points = [request for request in carried(self.method, state) if request.at]
            replies = self.search.replies(asked, at_points, 1, counts.device)
            sums = {name: value.sum(0) for name, value in replies.items()} | {"counts": counts}
            state = self.search.update(state, sums, replace(context, rule_state=memory, round=number))
            if Phase(int(state["effects.phase"])) == Phase.DONE:
                break
        # Nothing more is asked: a search that has not arrived says so.
        return {**state, "effects.phase": state["effects.phase"].new_tensor(float(Phase.DONE))}


@dataclass(frozen=True)
class NoisyRounds(NoisyProducts):
    """Noisy scores and information, round by round: each is searched, and the last one is the result."""

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """The search of this round's messages, begun again; clients know the next point as the server does."""
        if int(context.reported) < context.num_clients:
            return skipped(old)
        if Phase(int(old["effects.phase"])) == Phase.DONE:
            return old
        private, likelihood, number = self.method.private, self.method.likelihood, int(old["effects.asked"])
        assert private is not None
        assert isinstance(likelihood, NoisyWorking)
        packed = total["products"].cpu()
        points = context.rule_state.get("points", packed.new_zeros(len(packed), len(private.columns.names))).cpu()
        moments = likelihood.working(packed, points, number)
        rows = float(message_parts(packed, len(private.columns.names))[2].clamp_min(0).sum())
        begin = {**old, **{f"effects.{k}": v for k, v in self.method.first_roots().items() if f"effects.{k}" in old}}
        begin["effects.at"] = self.method.numbers({k.partition(".")[2]: v for k, v in begin.items()})
        begin["effects.counts"] = torch.zeros_like(old["effects.counts"])
        state = self.searched(begin, moments, len(packed), rows, context)
        if number < len(private.sds):
            entries = state["effects.root" if "effects.root" in state else "held.root"]
            usual = torch.full_like(state["effects.beta"], USUAL)
            shrunk = Coefficients(integrated=True, prior=(torch.zeros_like(usual), usual))
            numbers = self.method.numbers({k.partition(".")[2]: v for k, v in state.items()})
            middle = likelihood.beta(state["effects.cross"], numbers, shrunk)[0]
            following = WorkingRelease(self.method).following(packed, points, middle, entries, number)
            context.rule_state["points"] = following
            asked = {"effects.asked": old["effects.asked"] + 1, "effects.middle": middle}
            state |= {**asked, "effects.phase": old["effects.phase"]}
        return state
