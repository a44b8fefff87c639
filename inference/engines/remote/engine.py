"""The remote engine: clients at their own sites are asked, and what they answer is checked and added up.

How a request gets there is not its business: see :data:`Ask`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.federation import SPLITS, Federation
from hierfl.errors import UserError

from ...calibration.answer import Answer, no_answer
from ...calibration.question import Question
from ...evaluation.fitted import Fitted, Population
from ...method.base import Method
from ...method.capabilities import needs_everyone
from ...method.schedule import Plan
from ...options import Options
from ...server.exchange import Exchange
from ...server.receiver import Receiver
from ...state import State, StateForm, form_of_state
from ..base import Broadcast, ClientStatus, Reports, Scores
from .expected import Expected, refuse_replies
from .offers import Offers
from .questions import Ask, Questions
from .wire import (
    Handshake,
    Unreadable,
    check_calibration,
    check_form,
    check_scores,
    check_size,
    flat_answer,
    flat_scores,
    flattened,
    nbytes,
    nested,
    put_under,
)

log = logging.getLogger("hierfl")


class RemoteEngine:
    """See :class:`~hierfl.inference.engines.base.Engine`.

    Args:
        method: the study's.
        federation: its outline, see :func:`~hierfl.data.outline.without_data`.
        options: the study's.
        clients: the roster.
        ask: sends requests and collects answers.
        handshake: what server and sites have in common.
        new_clients: whether sites are asked for what a new client begins with; see
            :class:`~hierfl.inference.engines.remote.site.Site`.
        greeting: what all have agreed on before the first round, see
            :func:`~hierfl.inference.engines.remote.preparation.prepare`: also those who come late are told.
        restarts: see :class:`.questions.Questions`.
    """

    #: one process asks all sites, and each of them keeps its last round
    leads, every_round = True, True

    def __init__(
        self, method: Method, federation: Federation, options: Options, *, clients: Sequence[str], ask: Ask,
        handshake: Handshake, new_clients: bool = False, greeting: State | None = None, restarts: int = 0,
    ) -> None:  # fmt: skip
        self.greeting = greeting or {}
        self.method, self.options, self.handshake, self.new_clients = method, options, handshake, new_clients
        self.federation = federation.to(options.device, options.dtype)
        self.ids = list(clients)
        self.task, self.device = federation.task, self.federation.device
        self.questions = Questions(clients, ask, handshake, self.device, restarts)
        self.offers = Offers()

    def agree(self, wish: bool) -> bool:
        """One process asks all sites."""
        return wish

    def template(self) -> Batch:
        """One row without data."""
        return self.federation.template()

    def digest(self) -> str:
        """Of the study: the data are known to their sites alone."""
        return self.handshake.study

    def has_data(self, split: str) -> bool:
        """Whether any site has said that it has examples; all have training examples."""
        return self.offers.has(split)

    def begin(self, shared: State, initial: State, exchange: Exchange) -> None:
        """Greets the sites.

        Raises:
            UserError: if none of them is there; for a method whose server has something to say to single clients.
        """
        refuse_replies(self.method)
        self.expected = Expected(self.method, self.federation, self.options, shared, initial, exchange)
        #: the last round of each site, as it has said
        self._at: dict[int, object] = {}
        if not (found := self._greeted(range(len(self.ids)))):
            raise self.questions.missing(range(len(self.ids)), "no site has answered", "see the log for why")
        if len(found) < len(self.ids):  # (who is away may have what nobody else has)
            self.offers.splits |= set(SPLITS)

    def _greeted(self, clients: Sequence[int]) -> list[int]:
        """Tells sites what all have agreed on; those that have heard."""
        found = self.questions.asked({"kind": "hello", "round": 0}, self.greeting, clients, 0)
        self.offers.note({j: head for j, (head, _) in found.items()})
        self._at |= {j: head.get("at") for j, (head, _) in found.items()}
        return list(found)

    def _asked(
        self, about: dict[str, Any], tensors: State, clients: Sequence[int], most: int,
        own: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> dict[int, tuple[dict[str, Any], State]]:  # fmt: skip
        """What clients answer, in their order; those who come late are told first what the others know."""
        found = self.questions.asked(about, tensors, clients, most, own) if clients else {}
        if late := [j for j in clients if self.ids[j] in self.questions.unprepared]:
            found |= self.questions.asked(about, tensors, self._greeted(late), most, own)
        return {j: found[j] for j in clients if j in found}

    def _check_places(self, number: int) -> None:
        """Refuses to begin where a site is past the round that begins: its values would be undone, or lost."""
        for j, at in self._at.items():
            if isinstance(at, int) and at > number:
                raise UserError(
                    f"{self.ids[j]} is at round {at} of this study, and this server at {number}: go on from the "
                    "server's own checkpoint, or begin another study"
                )
            if isinstance(at, int) and at < int(self.questions.counted[j]):
                log.warning("%s has lost its values: it is at round %d, and has answered more", self.ids[j], at)
        self._at = {}

    # -- asking -------------------------------------------------------------------------------------------------

    def _settle(self, broadcast: Broadcast, last: int) -> None:
        """Notes whose messages of the round ``last`` were used."""
        if broadcast.used is not None:
            self.questions.counted[broadcast.used.cpu()] = last

    def round(self, broadcast: Broadcast, plan: Plan) -> Reports:
        """See :class:`~hierfl.inference.engines.base.Engine`."""
        self._settle(broadcast, broadcast.round - 1)
        self._check_places(broadcast.round)
        clients, reporting = len(self.ids), set(plan.reporting) if self.expected.exchange.groups else set()
        receiver = Receiver(
            self.expected.exchange, broadcast.shared, clients, self.device, self.options.max_message_ratio
        )
        diverged = torch.zeros(clients, dtype=torch.bool, device=self.device)
        about = {"kind": "round", "round": broadcast.round}
        own = {j: {"reports": j in reporting} for j in plan.training}
        answers = self._asked(about, broadcast.shared, sorted(plan.training), self.expected.exchange.bytes, own)
        if plan.training and not answers:
            raise self.questions.missing(plan.training, f"no site has answered in round {broadcast.round}")
        self.questions.check_quorum(sorted(reporting), None if needs_everyone(self.method) else self.options.quorum)
        used = torch.zeros(clients, dtype=torch.bool, device=self.device)
        for j, (head, tensors) in answers.items():
            diverged[j] = head.get("diverged") is True
            if j not in reporting or head.get("reports") is not True:
                continue
            try:
                sent = nested(check_form(tensors, self.expected.message))
                message = {g: {k: v[None] for k, v in state.items()} for g, state in sent.items()}
                used[j] = receiver.add(message, [j])[0]
                if not used[j]:
                    raise Unreadable("its numbers are too large, or not what the method's rules declare")
            except Unreadable as error:
                self.questions.refuse(j, "round", error)
        sums = replace(receiver.sums, diverged=diverged.sum())
        status = diverged.to(torch.uint8) * ClientStatus.DIVERGED
        for j in plan.reporting:
            heard = bool(used[j]) if reporting else j in answers
            status[j] = ClientStatus.REPORTED if heard else ClientStatus.REJECTED
        return Reports(sums, status, diverged)

    def scores(self, broadcast: Broadcast, split: str, draws: Sequence[int]) -> Scores:
        """See :class:`~hierfl.inference.engines.base.Engine`: sums; what a site has of its own stays there."""
        self._settle(broadcast, broadcast.round)
        everyone = range(len(self.ids))
        if late := [j for j in everyone if j not in self.offers.by_site and self.questions.counted[j] > 0]:
            self._greeted(late)  # (it was away at the beginning, and has not said what it has)
        new, asked = State(), self.offers.asked(split, len(self.ids))
        if asked and self.method.has_global_model and self._sends_new(broadcast):
            new = self._population(broadcast, summary=False).new_client_means
        nobody = self.expected.no_scores(len(draws))
        form = form_of_state(flat_scores(nobody))
        about = {
            "kind": "scores", "round": broadcast.round, "final": broadcast.final, "split": split, "draws": list(draws),
        }  # fmt: skip
        tensors = {**put_under("shared", broadcast.shared), **put_under("new", new)}
        found = [nobody]
        for j, (_, held) in self._asked(about, tensors, asked, nbytes(form)).items():
            try:
                check_form(held, form, finite=False)
                check_scores(held)
            except Unreadable as error:
                self.questions.refuse(j, "scores", error)
                continue
            parts = {g: {k: v.cpu().numpy() for k, v in s.items()} for g, s in nested(held).items()}
            found.append(Scores([parts[str(kind)] for kind in range(len(draws))], parts.get("global")))
        return reduce(add, found)

    def _sends_new(self, broadcast: Broadcast) -> bool:
        """Whether sites are asked for what a new client begins with."""
        return self.new_clients and bool(self.fitted(broadcast).new_client_sums())

    def _population(self, broadcast: Broadcast, *, summary: bool) -> Population:
        """Sums over all clients; empty where none are wanted.

        Raises:
            UserError: where a site is missing: a sum over some of them says something else.
        """
        nothing = self.expected.no_sums(broadcast, summary=summary, new=self._sends_new(broadcast))
        total = {k: v.to(self.device) for k, v in flattened(nothing).items()}
        if not total:
            return Population({}, {})
        sums = nested(self._summed("sums", broadcast, {"summary": summary, "new": "new" in nothing}, total))
        means = {k: v / len(self.ids) for k, v in sums.get("new", {}).items()}
        return Population(means, sums.get("summary", {}))

    def _summed(self, kind: str, broadcast: Broadcast, more: Mapping[str, Any], total: State) -> State:
        """What all sites answer, added to what none does.

        Raises:
            UserError: where one is missing.
        """
        form, answered = form_of_state(total), 0
        about = {"kind": kind, "round": broadcast.round, "final": broadcast.final, **more}
        tensors = put_under("shared", broadcast.shared)
        for j, (_, held) in self._asked(about, tensors, range(len(self.ids)), nbytes(form)).items():
            try:
                check_form(held, form, finite=kind == "sums")
                if kind == "sums":
                    check_size(held, len(self.ids))
                else:
                    check_calibration(held)
            except Unreadable as error:
                self.questions.refuse(j, kind, error)
                continue
            total, answered = {k: v + held[k] for k, v in total.items()}, answered + 1
        if answered < len(self.ids):
            words = f"{answered} of {len(self.ids)} sites have answered after round {broadcast.round}"
            raise self.questions.missing(range(len(self.ids)), words)
        return total

    def calibration(self, broadcast: Broadcast, question: Question) -> Answer:
        """See :class:`~hierfl.inference.engines.base.Engine`: sums; what a site has of its own stays there.

        Raises:
            UserError: where a site is missing: the rounds of sums must be of the same sites.
        """
        self._settle(broadcast, broadcast.round)
        nothing = {k: v.to(self.device) for k, v in flat_answer(no_answer(question)).items()}
        total = self._summed("calibration", broadcast, {"question": question.table()}, nothing)
        return Answer({group: {k: v.cpu().numpy() for k, v in sums.items()} for group, sums in nested(total).items()})

    def client_summary(self, broadcast: Broadcast) -> State:
        """That stays at the sites."""
        return {}

    def fitted(self, broadcast: Broadcast) -> Fitted:
        """No client is here."""
        return self.expected.fitted(broadcast)

    def result(self, broadcast: Broadcast, calibrated: State | None = None) -> Fitted:
        """What all clients have in common; the sites keep what they need to predict."""
        self._settle(broadcast, broadcast.round)
        population = self._population(broadcast, summary=True)
        tensors = {
            **put_under("shared", broadcast.shared), **put_under("new", population.new_client_means),
            **put_under("summary", population.summary_sums), **put_under("calibration", calibrated or {}),
        }  # fmt: skip
        about = {"kind": "finish", "round": broadcast.round, "final": broadcast.final}
        self._asked(about, tensors, range(len(self.ids)), 0)
        return replace(self.fitted(broadcast), population=population)

    def state(self, broadcast: Broadcast) -> State:
        """Whose messages were used when."""
        self._settle(broadcast, broadcast.round)
        return {"counted": self.questions.counted.clone()}

    def form(self) -> StateForm:
        """See :class:`~hierfl.inference.engines.base.Engine`."""
        return form_of_state({"counted": self.questions.counted})

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what :meth:`state` gave."""
        self.questions.counted = state["counted"].cpu()
