"""Draws that another shared value has left: thinned, the last ones kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...state import State
from .base import AggregationContext, Unsent


def without_repeats(draws: Tensor) -> Tensor:
    """The draws that :class:`KeptDraws` has so far, (1, there, *shape): where the first comes again, others end."""
    again = (draws[0, 1:] == draws[0, :1])[..., None].flatten(1).all(1).tolist()
    return draws[:, : 1 + again.index(True)] if True in again else draws


@dataclass(frozen=True)
class KeptDraws(Unsent):
    """What another shared value was at the beginning of some rounds, (1, kept, *shape); no client sends anything.

    Until burn-in is over all are the value's last. From then on each ``thin``-th round gives a draw; while there are
    fewer than are to be kept those that there are come again (:func:`without_repeats`), and later the last ones are
    kept.

    Args:
        of: the other value, as it was before the round's update.
        burn: so many rounds give none, the first; skipped ones are not counted.
        thin: rounds from one draw to the next.
    """

    of: str
    burn: int = 0
    thin: int = 1

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """Adds a draw, where one is due."""
        ((name, value),) = old.items()
        kept, new = value[0], context.shared[self.of]
        zero = torch.zeros((), dtype=torch.long, device=value.device)
        rounds = context.rule_state.get("seen", zero) + 1
        context.rule_state["seen"] = rounds
        number = (rounds - self.burn - 1).div(self.thin, rounding_mode="floor") + 1  # of the draw, where it is one
        due = (rounds > self.burn) & ((rounds - self.burn - 1) % self.thin == 0)
        most, slots = len(kept), torch.arange(len(kept), device=value.device)
        num_kept = number.clamp(1, most)
        older = torch.where(number > most, kept.roll(-1, 0), kept)
        last = (slots == num_kept - 1).view(-1, *[1] * new.dim())
        added = torch.where(last, new, older)[slots % num_kept]
        values = torch.where(due, added, kept)
        return {name: torch.where(rounds > self.burn, values, new.expand_as(kept))[None]}
