"""Sums over sites with masks: single messages are checked where they are made, and what is known of them are counts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

import torch

from ...messages.opened import masked_bytes
from ...messages.sums import Sums
from ...method.schedule import Plan
from ...options import Options
from ...state import form_of_state
from ..base import Broadcast, ClientStatus, Reports
from ..fixed import marked, refused_error, say_left_out, unmarked
from ..groups import group_singles
from ..masking import MIN_CLIENTS
from .expected import Expected
from .masks.parts import Total
from .masks.server import MaskedSums
from .refusals import OF_ALL
from .summing import SumQuestion
from .wire import nested

log = logging.getLogger("hierfl")


class HiddenSums:
    """Everyone on the roster answers every question: who has nothing to add sends zeros.

    The header says who adds (``adding``) and who trains (``training``), by name, where that is not everyone: all sites
    must be sent the same.

    Args:
        masks: opens sums.
        options: of the fit; None where no round is asked for.
    """

    def __init__(self, masks: MaskedSums, options: Options | None = None) -> None:
        self.masks, self.questions, self.options = masks, masks.questions, options or Options()
        self.ids = self.questions.ids

    def _named(self, clients: Sequence[int]) -> list[str] | None:
        """Names of clients; None for everyone."""
        return None if len(clients) == len(self.ids) else [self.ids[j] for j in sorted(clients)]

    def _header(self, entries: Mapping[str, Any], **who: Sequence[int]) -> dict[str, Any]:
        names = {kind: self._named(clients) for kind, clients in who.items()}
        return {
            **entries,
            **{kind: names_of_clients for kind, names_of_clients in names.items() if names_of_clients is not None},
        }

    def total(self, question: SumQuestion) -> Total:
        """See :class:`.summing.Summation`.

        Raises:
            UserError: for sums that count with all clients' numbers alone, where some do not fit.
        """
        kind, clients = question.about["kind"], len(self.ids)
        if len(question.clients) < MIN_CLIENTS:
            if question.clients:
                log.warning(
                    "%s: %d sites have something to add, and masks need %d", kind, len(question.clients), MIN_CLIENTS
                )
            return Total(question.nothing, [], 0)
        nothing = question.nothing if question.finite else marked(question.nothing, clients)
        entries = self._header(question.about, adding=question.clients)
        total = self.masks.ask(entries, question.tensors, form_of_state(nothing))
        if total is None:
            log.warning("the sum (%s, round %d) has not opened", kind, question.about["round"])
            return Total(question.nothing, [], 0)
        if not total.opened and kind in OF_ALL:
            raise refused_error(max(total.refused, len(question.clients) - total.reported), kind)
        if not total.opened:
            return Total(question.nothing, [], 0)
        say_left_out(total.refused, kind)
        sums = total.sums if question.finite else unmarked(total.sums)
        return Total(
            {k: sums[k].to(v) for k, v in question.nothing.items()}, total.clients, total.reported, total.diverged,
            total.refused,
        )  # fmt: skip

    def round(self, broadcast: Broadcast, plan: Plan, expected: Expected) -> Reports:
        """See :class:`.summing.Summation`."""
        clients, device, number = len(self.ids), self.questions.device, broadcast.round
        reporting = set(plan.reporting) if expected.exchange.groups else set()
        entries = self._header(
            {"kind": "round", "round": number}, adding=sorted(reporting), training=sorted(plan.training)
        )
        totals = self.masks.ask_groups(entries, broadcast.shared, expected.message)
        opened = [total for total in totals if total is not None]
        if len(opened) < len(totals):
            of_groups = f" of {len(totals) - len(opened)} groups" if len(totals) > 1 else ""
            log.warning("round %d: the sum%s has not opened, since answers are missing", number, of_groups)
        if not opened and not self.questions.answered:
            raise self.questions.missing(range(clients), f"no site has answered in round {number}")
        status, refused = torch.zeros(clients, dtype=torch.uint8, device=device), 0
        status[list(plan.reporting)] = ClientStatus.REJECTED
        for total in opened:
            answered = sorted(set(plan.reporting) & set(total.clients))
            lost = len(answered) - total.reported if reporting else 0
            if not total.opened and len(totals) > 1:
                continue  # of the messages of this group none is used
            if lost < len(answered):  # else all are known to be rejected
                status[answered] = ClientStatus.UNKNOWN if lost else ClientStatus.REPORTED
                refused += lost
        none = torch.zeros(clients, dtype=torch.bool, device=device)
        sums = reduce(add, (self._sums(total, expected) for total in opened), Sums.nothing(device))
        parts = [None if total is None or not total.opened else self._sums(total, expected) for total in totals]
        singles = group_singles(parts, self.members, expected.exchange) if self.options.mask_groups else None
        return Reports(sums, status, none, singles, refused)

    @property
    def members(self) -> list[list[int]]:
        """Positions of each group's clients, as the masks have them."""
        return [sorted(map(self.ids.index, group)) for group in self.masks.groups]

    def _sums(self, total: Total, expected: Expected) -> Sums:
        """One sum as the server's rules take it; one that has not opened is of no message."""
        device, reported = self.questions.device, total.reported if total.opened else 0
        counts = [torch.tensor(count, device=device) for count in (reported, total.diverged)]
        totals = nested({k: v.to(device) for k, v in total.sums.items()}) if total.opened else {}
        return Sums(counts[0], counts[1], totals, len(total.clients) * masked_bytes(expected.exchange.forms))
