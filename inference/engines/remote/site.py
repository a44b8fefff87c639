"""A site: one client at its own position, with its data, its own values on its own disk, and what it answers.

What leaves it are messages (of which the server needs the sum) and sums of metrics. A request may come twice, late, or
from a server that was killed and has gone on: the site keeps its values before and after its last round and what it
answered, in one file. It answers a repeated request with the same bytes, and an older one never.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import torch

from hierfl.data.federation import SPLITS, Federation
from hierfl.errors import UserError

from ...calibration.answer import answer
from ...calibration.question import Question, calibrated_form
from ...evaluation.fitted import Fitted, Population
from ...method.base import Method
from ...method.capabilities import has_converged
from ...method.initial import InitialWeights
from ...method.of_options import of_options
from ...options import Options
from ...server.exchange import Exchange
from ...state import State, form_of_state
from ..base import Broadcast
from ..plate import PlateEngine
from .answering import Desk, Handler
from .expected import Expected, refuse_replies
from .own_part import OwnPart
from .refusals import Refused
from .site_state import SiteState
from .small_cells import without_small_cells
from .wire import LARGEST_HEADER, Handshake, Unreadable, check_form, flat_answer, flat_scores, flattened, under

log = logging.getLogger("hierfl")
#: bytes of what a method's report needs of all clients
LARGEST_REPORT = 2**24
#: kinds of requests whose answers have no noise: in a study with noise they have no share of epsilon
WITHOUT_NOISE = ("scores", "sums", "calibration")


class Site:
    """One client's side of a fit.

    Args:
        method: the study's.
        federation: this client's data alone.
        options: the study's.
        folder: the site's own; nothing in it is ever sent.
        handshake: what this site has in common with its server.
        new_clients: whether it sends what a new client begins with, where the method makes that from the clients'
            values: of some methods that is all of a personal model, in a sum.
        train_scores: whether it says how well its training rows are predicted, at values of the server's choice.
        least_cell: rows in every cell of a count of rows that is not empty; else it counts none.
        roster: names of all clients; needed with masks, and where noise on a sum is divided among them.

    Raises:
        UserError: for more than one client, a folder of another study, or a method that sites do not know.
    """

    #: digest of sums over all sites with which it began: none by itself; see :class:`.preparation.PreparedSite`
    basis = ""

    def __init__(
        self, method: Method, federation: Federation, options: Options, folder: Path, handshake: Handshake, *,
        new_clients: bool = False, train_scores: bool = True, roster: Sequence[str] = (),
        least_cell: int = 1,
    ) -> None:  # fmt: skip
        if federation.clients != 1:
            raise UserError(f"a site is one client, not {federation.clients}")
        refuse_replies(method)
        method, federation = of_options(options, method, federation, alone=True, everyone=len(roster))
        self.method, self.options, self.folder, self.handshake = method, options, folder, handshake
        plain = replace(options, chunk=1, masked=False, mask_groups=0, robust="none")
        self.plate = PlateEngine(method, federation, plain)
        self.client, self.new_clients, self.least_cell = federation.ids[0], new_clients, least_cell
        self.splits = [split for split in SPLITS if self.plate.has_data(split) and (train_scores or split != "train")]
        if self.plate.privacy is not None:  # scores have no share, and which splits it has depends on its rows
            self.plate.privacy, self.splits = self.plate.privacy.at_a_site(), []
        start, device = InitialWeights.for_network(method.network, options.seed), self.plate.device
        self.shared, initial = (
            {k: v.detach().to(device, options.dtype, copy=True) for k, v in values.items()}
            for values in (method.shared(start), method.personal(start))
        )
        exchange = Exchange(method.exchange(), method.pipeline(), method.expand, self.shared)
        #: what it adds to masked sums
        self.part: OwnPart | None = None
        if options.masked:
            expected = Expected(method, self.plate.federation, options, self.shared, initial, exchange)
            self.part = OwnPart(self.client, roster, expected)
        self.tentative = method.schedule().commit == "if-used"
        with torch.no_grad(), pyro.get_param_store().scope():
            self.plate.begin(self.shared, initial, exchange)
        fresh = self.plate.store.state()
        self.state = SiteState.load(folder, handshake.study, self.client) or SiteState(fresh, fresh)
        if form_of_state(self.state.after) != form_of_state(fresh):
            raise UserError(f"{folder} holds values of another method or network")
        self._current: tuple[int, bool] | None = None
        # the largest request: what is broadcast, and at the end what is known of all clients
        most = LARGEST_HEADER + LARGEST_REPORT + sum(v.nbytes for v in (*self.shared.values(), *fresh.values()))
        self.desk = Desk(self.client, handshake, device, most)

    def answer(self, request: bytes) -> bytes:
        """What it answers: always something, if only that it cannot; see :class:`.answering.Desk`."""
        kinds = {
            "hello": self._hello, "round": self._round, "scores": self._scores, "sums": self._sums,
            "calibration": self._calibration, "finish": self._finish,
        }  # fmt: skip
        return self.desk.answer(request, {name: partial(self._checked, handler) for name, handler in kinds.items()})

    def _checked(self, handler: Handler, head: dict[str, Any], tensors: State, digest: str) -> bytes:
        self._check(head)
        if self.plate.privacy is not None and head["kind"] in WITHOUT_NOISE:
            raise Refused(f"{head['kind']} have no noise, and this study's answers do", "policy")
        return handler(head, tensors, digest)

    def _check(self, head: Mapping[str, Any]) -> None:
        """Refuses rounds that are none of the study's, or that this site is past."""
        for name in ("round", "counted"):
            value = head.get(name)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= self.options.rounds:
                raise Unreadable(f"its {name} is no number of a round of this study")
        number, last = head["round"], self.state.round
        if head["kind"] != "hello" and number < last:
            raise Unreadable(f"round {number} is asked for, and this site is past it (round {last})")
        if head["kind"] == "round" and not number:
            raise Unreadable("rounds begin with 1")

    # -- requests -----------------------------------------------------------------------------------------------

    def _hello(self, head: dict[str, Any], tensors: State, digest: str) -> bytes:
        return self.desk.says({"round": head["round"], "splits": self.splits, "at": self.state.round})

    def _round(self, head: dict[str, Any], tensors: State, digest: str) -> bytes:
        number, state = head["round"], self.state
        if number == state.round and digest == state.request:
            return state.answer  # it was lost, or the server was
        shared = check_form(tensors, form_of_state(self.shared))
        reports = self.part.adds(head) if self.part else bool(head.get("reports"))
        if self.part and not self.part.trains(head):
            return self.desk.says({"round": number, "counts": [0, 0, 0]}, self.part.no_message())
        # the same round with other values: what was done is undone
        before = state.before if number == state.round else self._committed_values(head)
        self.plate.load(before)
        self._current = None
        message, diverged = self.plate.message(
            Broadcast(number, shared), reports=reports, always=self.part is not None and self.part.always
        )
        sent, after = flattened(message), self.plate.store.state()
        finite = all(bool(v.isfinite().all()) for v in sent.values() if v.is_floating_point())
        entries = {"round": number, "diverged": diverged, "reports": bool(sent) and finite}
        if self.part is not None:
            sent, counts = self.part.message(shared, sent, diverged=diverged, reports=reports)
            entries |= {"counts": counts}
            after = before if self.tentative and counts[2] else after  # no one else knows that it was not used
        answer = self.desk.says(entries, sent if finite or self.part else {})
        self._keep(SiteState(before, after, number, digest, answer))
        return answer

    def _keep(self, state: SiteState) -> None:
        """Saves first, since an answer that has left must not be forgotten."""
        state.save(self.folder, self.handshake.study, self.client)
        self.state = state

    def _scores(self, head: dict[str, Any], tensors: State, digest: str) -> bytes:
        fitted = self._fitted(head, tensors)
        split, draws = head.get("split"), head.get("draws")
        if split not in SPLITS or draws not in ([0], [0, self.options.draws]):
            raise Unreadable("it says no split, or other draws than the study")
        if self.part is not None:
            adds = self.part.adds(head) and split in self.splits
            metrics = flat_scores(self.plate.scores_of(fitted, split, draws)) if adds else None
            return self._says(head, *self.part.scores(metrics, len(draws)))
        if split not in self.splits and self.plate.has_data(split):
            raise Unreadable("this site gives no scores on its training rows: its policy.toml would have to allow them")
        return self.desk.says({"round": head["round"]}, flat_scores(self.plate.scores_of(fitted, split, draws)))

    def _sums(self, head: dict[str, Any], tensors: State, digest: str) -> bytes:
        fitted = self._fitted(head, tensors)
        sums: dict[str, State] = {}
        if head.get("new"):
            if not self.new_clients:
                raise Unreadable("the study has not agreed to send what a new client begins with")
            sums["new"] = fitted.new_client_sums()
        if head.get("summary"):
            sums["summary"] = without_small_cells(self.method, self.method.summary_terms(fitted), self.least_cell)
        if self.part is not None:
            return self._says(head, *self.part.sums(flattened(sums)))
        return self.desk.says({"round": head["round"]}, flattened(sums))

    def _calibration(self, head: dict[str, Any], tensors: State, digest: str) -> bytes:
        fitted = self._fitted(head, tensors)
        try:
            question = Question.from_request(head.get("question"), self.options)
        except UserError as error:
            raise Unreadable("it asks for what this study's calibration does not need") from error
        sums = flat_answer(answer(fitted, question, 1).sums)
        if self.part is not None:
            return self._says(head, *self.part.answer(sums, adds=self.part.adds(head)))
        return self.desk.says({"round": head["round"]}, sums)

    def _says(self, head: Mapping[str, Any], numbers: State, counts: list[int]) -> bytes:
        """What it adds to a masked sum."""
        return self.desk.says({"round": head["round"], "counts": counts}, numbers)

    def _finish(self, head: dict[str, Any], tensors: State, digest: str) -> bytes:
        """Keeps what is needed to predict here, without any server."""
        kept = {k: v for k, v in tensors.items() if not k.startswith("calibration/")}
        random = self._fitted(head, kept, finite=True).trace.random
        check_form(under("calibration", tensors), calibrated_form(self.options, random=random))
        self._keep(replace(self.state, after=self._committed_values(head), final=tensors, ended=True))
        return self.desk.says({"round": head["round"]})

    # -- values -------------------------------------------------------------------------------------------------

    def _committed_values(self, head: Mapping[str, Any]) -> State:
        """Its values once it knows whether its last message was used."""
        state = self.state
        return state.before if self.tentative and head["counted"] != state.round else state.after

    def _fitted(self, head: Mapping[str, Any], tensors: State, *, finite: bool = False) -> Fitted:
        """What it predicts with after the round that has ended: with the broadcast values, and what all clients say."""
        parts = {part: under(part, tensors) for part in ("shared", "new", "summary")}
        if sum(map(len, parts.values())) < len(tensors):
            raise Unreadable("it holds tensors that no one asks for")
        shared = check_form(parts["shared"], form_of_state(self.shared), finite=finite)
        which = head["round"], self.tentative and head["counted"] != self.state.round
        if self._current != which:
            self.plate.load(self._committed_values(head))
            self._current = which
        fitted = self.plate.fitted(Broadcast(head["round"], shared, final=bool(head.get("final"))))
        if parts["new"]:
            sums = fitted.new_client_sums().items()
            parts["new"] = check_form(parts["new"], {k: (tuple(v.shape), (v / 1).dtype) for k, v in sums})
        if parts["summary"]:
            parts["summary"] = check_form(parts["summary"], form_of_state(self.method.summary_terms(fitted)))
        return replace(fitted, population=Population(parts["new"], parts["summary"]))

    def fitted(self) -> Fitted:
        """What it predicts with once the study has ended.

        Raises:
            UserError: if it has not.
        """
        if not self.state.ended:
            raise UserError(f"{self.folder}: the study has not ended for this site; it predicts nothing yet")
        done = has_converged(self.method, under("shared", self.state.final))
        last = self.state.round if done else self.options.rounds
        head = {"round": last, "counted": self.state.round, "final": self._final_steps}
        with torch.no_grad(), pyro.get_param_store().scope():
            return self._fitted(head, {k: v for k, v in self.state.final.items() if not k.startswith("calibration/")})

    @property
    def calibrated(self) -> State:
        """What a calibration of all clients has found; empty for none."""
        return under("calibration", self.state.final)

    @property
    def _final_steps(self) -> bool:
        return self.method.schedule().is_final(self.options.rounds, self.options.rounds)
