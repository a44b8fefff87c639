"""Sums over sites: of single answers that are checked one by one, or with masks, which open sums alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from ...method.schedule import Plan
from ...state import State, form_of_state
from ..base import Broadcast, ClientStatus, Reports
from .expected import Expected
from .masks.parts import Total
from .questions import Questions
from .wire import Unreadable, check_form, nbytes, nested

log = logging.getLogger("hierfl")
#: asks clients: header, tensors, clients, bytes of an answer, entries for one client alone -> {client: its answer}
Asking = Callable[..., dict[int, tuple[dict[str, Any], State]]]


@dataclass(frozen=True)
class SumQuestion:
    """A question whose answers add up.

    Attributes:
        about: the request's header.
        tensors: what goes with it.
        nothing: what no client answers: zeros, which also say the form.
        clients: who has something to add.
        check: raises :class:`.wire.Unreadable` for one client's numbers that cannot be.
        finite: whether numbers that are none are refused; else they are metrics.
        note: is given each client's position and what it has answered, where answers are read one by one and count.
    """

    about: Mapping[str, Any]
    tensors: State
    nothing: State
    clients: Sequence[int]
    check: Callable[[Mapping[str, torch.Tensor]], None]
    finite: bool = True
    note: Callable[[int, Mapping[str, torch.Tensor]], None] | None = None


class Summation(Protocol):
    """Asks sites, and adds up what they answer."""

    def total(self, question: SumQuestion) -> Total:
        """The sum over clients; ``clients`` of it are those whose answers are in it."""
        ...

    def round(self, broadcast: Broadcast, plan: Plan, expected: Expected) -> Reports:
        """A round's messages.

        Raises:
            UserError: where no site has answered.
        """
        ...


class PlainSums:
    """Every answer is read by itself, checked, and added.

    Args:
        questions: asks the sites.
        asked: how they are asked; None for ``questions`` alone.
        rows: the fewest and the most training rows of each site, (2, J); None where they are not known.
    """

    def __init__(self, questions: Questions, asked: Asking | None = None, rows: torch.Tensor | None = None) -> None:
        self.questions, self.asked, self.rows = questions, asked or questions.asked, rows

    def total(self, question: SumQuestion) -> Total:
        """See :class:`Summation`."""
        form, sums, used = form_of_state(question.nothing), dict(question.nothing), []
        for j, (_, sums_of_site) in self.asked(
            question.about, question.tensors, question.clients, nbytes(form)
        ).items():
            try:
                check_form(sums_of_site, form, finite=question.finite)
                question.check(sums_of_site)
            except Unreadable as error:
                self.questions.refuse(j, question.about["kind"], error)
                continue
            sums = {k: v + sums_of_site[k].to(v.device) for k, v in sums.items()}
            used.append(j)
            if question.note is not None:
                question.note(j, sums_of_site)
        return Total(sums, used, len(used))

    def round(self, broadcast: Broadcast, plan: Plan, expected: Expected) -> Reports:
        """See :class:`Summation`."""
        clients, device = len(self.questions.ids), self.questions.device
        reporting = set(plan.reporting) if expected.exchange.groups else set()
        receiver = expected.receiver(broadcast.shared, clients, device, self.rows)
        question = {"kind": "round", "round": broadcast.round}
        own = {j: {"reports": j in reporting} for j in plan.training}
        answers = self.asked(question, broadcast.shared, sorted(plan.training), expected.exchange.bytes, own)
        if plan.training and not answers:
            raise self.questions.missing(plan.training, f"no site has answered in round {broadcast.round}")
        used, diverged = (torch.zeros(clients, dtype=torch.bool, device=device) for _ in range(2))
        for j, (head, tensors) in answers.items():
            diverged[j] = head.get("diverged") is True
            if j not in reporting or head.get("reports") is not True:
                continue
            try:
                sent = nested(check_form(tensors, expected.message))
                message = {g: {k: v[None] for k, v in state.items()} for g, state in sent.items()}
                used[j] = receiver.add(message, [j])[0]
                if not used[j]:
                    raise Unreadable("its numbers are too large, or not what the method's rules declare")
            except Unreadable as error:
                self.questions.refuse(j, "round", error)
        status = diverged.to(torch.uint8) * ClientStatus.DIVERGED
        for j in plan.reporting:
            reported = bool(used[j]) if reporting else j in answers
            status[j] = ClientStatus.REPORTED if reported else ClientStatus.REJECTED
        singles = receiver.singles.of_all(clients, reporting & answers.keys()) if receiver.singles else None
        return Reports(replace(receiver.sums, diverged=diverged.sum()), status, diverged, singles)
