"""The remote engine: clients at their own sites are asked, and what they answer is checked and added up.

How a request gets there is not its business: see :data:`Ask`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.client_names import in_words
from hierfl.data.federation import SPLITS, Federation
from hierfl.errors import UserError

from ...calibration.answer import Answer, no_answer
from ...calibration.question import Question
from ...evaluation.fitted import Fitted, Population
from ...method.base import Method
from ...method.capabilities import needs_everyone
from ...method.schedule import Plan
from ...method.with_noise import privacy_of
from ...options import Options
from ...server.exchange import Exchange
from ...state import State, StateForm, form_of_state
from ..base import Broadcast, Reports, Scores
from ..masking import check_enough, check_maskable
from .expected import Expected, refuse_replies
from .masked_summing import HiddenSums
from .masks.question import basis_of
from .masks.server import MaskedSums
from .offers import Offers
from .questions import Ask, Questions
from .summing import PlainSums, Summation, SumQuestion
from .wire import (
    Handshake,
    check_calibration,
    check_scores,
    check_size,
    flat_answer,
    flat_scores,
    flattened,
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
            :func:`~hierfl.inference.engines.remote.preparation.prepare`: also those who come late are informed.
        restarts: see :class:`.questions.Questions`.
        rows: the fewest and the most training rows of each site, (2, J), as of its sums; None where they are not known.
        masks: opens sums of masked answers, where the options say ``masked``.

    Raises:
        UserError: for masks without what opens them.
    """

    #: one process asks all sites, and each of them keeps its last round
    leads, every_round = True, True

    def __init__(
        self, method: Method, federation: Federation, options: Options, *, clients: Sequence[str], ask: Ask,
        handshake: Handshake, new_clients: bool = False, greeting: State | None = None, restarts: int = 0,
        masks: MaskedSums | None = None, rows: Tensor | None = None,
    ) -> None:  # fmt: skip
        if options.masked != (masks is not None):
            raise UserError("masked sums need keys of all sites: a study with masked = true, served by files or Flower")
        self.greeting, self.privacy = greeting or {}, privacy_of(method, options)
        self.method, self.options, self.handshake, self.new_clients = method, options, handshake, new_clients
        self.federation = federation.to(options.device, options.dtype)
        self.ids = list(clients)
        self.task, self.device = federation.task, self.federation.device
        self.questions = masks.questions if masks else Questions(clients, ask, handshake, self.device, restarts)
        self.offers = Offers()
        self.summing: Summation = PlainSums(self.questions, self._asked, rows if options.dp == "none" else None)
        if masks:
            masks.greeted_by(self._greeted, basis_of(self.greeting))
            self.summing = HiddenSums(masks, options)

    def agree(self, wish: bool) -> bool:
        """One process asks all sites."""
        return wish

    def template(self) -> Batch:
        """One row without data."""
        return self.federation.template()

    def digest(self) -> str:
        """The digest of the study."""
        return self.handshake.study

    def has_data(self, split: str) -> bool:
        """Whether any site has said so; all have training examples. With noise none says, and rows have no metrics."""
        return self.offers.has(split) if self.privacy is None else split != "validation"

    def _adding(self, split: str) -> list[int]:
        """Who has something to say of a split: without masks all are asked but those that keep training rows.

        With noise no one is: scores have no share of epsilon.
        """
        if self.privacy is not None:
            return []
        return self.offers.adding(split) if self.options.masked else self.offers.asked(split, len(self.ids))

    def begin(self, shared: State, initial: State, exchange: Exchange) -> None:
        """Greets the sites.

        Raises:
            UserError: if none of them is there; for a method whose server has something to say to single clients.
        """
        refuse_replies(self.method)
        check_maskable(self.method, exchange, self.options, len(self.ids))
        self.expected = Expected(self.method, self.federation, self.options, shared, initial, exchange)
        #: the last round of each site, as it has said
        self._at: dict[int, object] = {}
        if not (greeted := self._greeted(range(len(self.ids)))):
            raise self.questions.missing(range(len(self.ids)), "no site has answered", "see the log for why")
        if len(greeted) < len(self.ids):  # who is away may have what no one else has
            self.offers.splits |= set(SPLITS)

    def _greeted(self, clients: Sequence[int]) -> list[int]:
        """Tells sites what all have agreed on; those that have answered."""
        heads = self.questions.asked({"kind": "hello", "round": 0}, self.greeting, clients, 0)
        self.offers.note({j: head for j, (head, _) in heads.items()})
        self._at |= {j: head.get("at") for j, (head, _) in heads.items()}
        return list(heads)

    def _asked(
        self, question: dict[str, Any], tensors: State, clients: Sequence[int], most: int,
        own: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> dict[int, tuple[dict[str, Any], State]]:  # fmt: skip
        """What clients answer, in their order; those who come late are sent first what the others know."""
        answers = self.questions.asked(question, tensors, clients, most, own) if clients else {}
        if late := [j for j in clients if self.ids[j] in self.questions.unprepared]:
            answers |= self.questions.asked(question, tensors, self._greeted(late), most, own)
        return {j: answers[j] for j in clients if j in answers}

    def _check_places(self, number: int) -> None:
        """Refuses to begin where a site is past the round that begins: its values would be undone, or lost."""
        for j, at in self._at.items():
            if isinstance(at, int) and at > number:
                raise UserError(
                    f"{in_words(self.ids[j])} is at round {at} of this study, and this server at {number}: go on from "
                    "the server's own checkpoint, or begin another study"
                )
            if isinstance(at, int) and at < int(self.questions.counted[j]):
                name = in_words(self.ids[j])
                log.warning("%s has lost its values: it is at round %d, and has answered more", name, at)
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
        reports = self.summing.round(broadcast, plan, self.expected)
        reporting = sorted(plan.reporting) if self.expected.exchange.groups else []
        self.questions.check_quorum(reporting, None if needs_everyone(self.method) else self.options.quorum)
        return reports

    def scores(self, broadcast: Broadcast, split: str, draws: Sequence[int]) -> Scores:
        """Sums, see :class:`~hierfl.inference.engines.base.Engine`. With noise no site is asked: they have no share."""
        self._settle(broadcast, broadcast.round)
        self._hear_of_late()
        new, asked = State(), self._adding(split)
        if asked and self.method.has_global_model and self._sends_new(broadcast):
            new = self._population(broadcast, summary=False).new_client_means
        question = {
            "kind": "scores", "round": broadcast.round, "final": broadcast.final, "split": split, "draws": list(draws),
        }  # fmt: skip
        tensors = {**put_under("shared", broadcast.shared), **put_under("new", new)}
        nothing = flat_scores(self.expected.no_scores(len(draws)))
        sums = self.summing.total(SumQuestion(question, tensors, nothing, asked, check_scores, finite=False)).sums
        parts = {g: {k: v.cpu().numpy() for k, v in s.items()} for g, s in nested(sums).items()}
        return Scores([parts[str(kind)] for kind in range(len(draws))], parts.get("global"))

    def _hear_of_late(self) -> None:
        """Asks what sites have that were away at the beginning, and have been there since."""
        late = [j for j in range(len(self.ids)) if j not in self.offers.by_site and self.questions.counted[j] > 0]
        if late:
            self._greeted(late)

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
        question = {"summary": summary, "new": "new" in nothing}
        check = partial(check_size, clients=len(self.ids))
        sums = nested(self._summed("sums", broadcast, question, total, check))
        means = {k: v / len(self.ids) for k, v in sums.get("new", {}).items()}
        return Population(means, sums.get("summary", {}))

    def _summed(
        self, kind: str, broadcast: Broadcast, more: Mapping[str, Any], nothing: State,
        check: Callable[[Mapping[str, Tensor]], None], adding: Sequence[int] = (),
    ) -> State:  # fmt: skip
        """What all sites answer, added to what none does.

        Raises:
            UserError: where one is missing.
        """
        entries = {"kind": kind, "round": broadcast.round, "final": broadcast.final, **more}
        tensors, everyone = put_under("shared", broadcast.shared), range(len(self.ids))
        question = SumQuestion(entries, tensors, nothing, adding or everyone, check, finite=kind == "sums")
        total = self.summing.total(question)
        if len(total.clients) < len(self.ids):
            words = f"{len(total.clients)} of {len(self.ids)} sites have answered after round {broadcast.round}"
            raise self.questions.missing(everyone, words)
        return total.sums

    def calibration(self, broadcast: Broadcast, question: Question) -> Answer:
        """See :class:`~hierfl.inference.engines.base.Engine`: sums; what a site has of its own stays there.

        Raises:
            UserError: where a site is missing: the rounds of sums must be of the same sites.
        """
        self._settle(broadcast, broadcast.round)
        nothing = {k: v.to(self.device) for k, v in flat_answer(no_answer(question)).items()}
        self._hear_of_late()
        adding = self.offers.adding(question.split) if self.options.masked else []
        check_enough([int(j in adding) for j in range(len(self.ids))], question.split, self.options)
        entries = {"question": question.table()}
        total = self._summed("calibration", broadcast, entries, nothing, check_calibration, adding)
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
        population = self._population(broadcast, summary=self.privacy is None)
        tensors = {
            **put_under("shared", broadcast.shared), **put_under("new", population.new_client_means),
            **put_under("summary", population.summary_sums), **put_under("calibration", calibrated or {}),
        }  # fmt: skip
        question = {"kind": "finish", "round": broadcast.round, "final": broadcast.final}
        self._asked(question, tensors, range(len(self.ids)), 0)
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
