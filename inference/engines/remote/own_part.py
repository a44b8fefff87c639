"""What one site adds to masked sums, by its own checks: no one else sees its message.

Every answer says three counts, each 0 or 1: whether its numbers are a message that counts; whether its computation has
failed; whether its message failed a check. Then it adds zeros.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from hierfl.rng import client_keys

from ...server.participation import draw_participants
from ...server.receiver import Receiver
from ...state import State, form_of_state
from ..fixed import fits, marked
from ..masking import MIN_CLIENTS, check_maskable, least_reporting
from .expected import Expected
from .masks.parts import Contribution
from .refusals import refusal
from .wire import Unreadable, check_calibration, check_form, check_scores, check_size, decode, flat_scores, nested

log = logging.getLogger("hierfl")
#: whether a question's header and tensors, without masks, are within the bounds that a site's rows set
Fits = Callable[[Mapping[str, Any], State], bool]
#: an answer's numbers, and its counts
Part = tuple[State, list[int]]


class OwnPart:
    """A site's part of sums.

    Args:
        client: its name.
        roster: names of all clients, J of them.
        expected: what sites send.

    Raises:
        UserError: for a study whose messages do not add up, or fewer than three clients.
    """

    def __init__(self, client: str, roster: Sequence[str], expected: Expected) -> None:
        check_maskable(expected.method, expected.exchange, expected.options, len(roster))
        self.client, self.roster, self.clients, self.expected = client, list(roster), len(roster), expected

    @property
    def always(self) -> bool:
        """Whether each answer has a message: with noise on a sum over clients its share of that must not be missing."""
        return self.expected.options.dp == "client"

    def _among(self, head: Mapping[str, Any], entry: str) -> bool:
        """Whether a header names this site; a header without the entry means everyone."""
        if entry not in head:
            return True
        names = head[entry]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise Unreadable(f"its {entry!r} is no list of names")
        return self.client in names

    def adds(self, head: Mapping[str, Any]) -> bool:
        """Whether this site is to add something.

        Raises:
            Unreadable: where fewer than three sites are; in a round where others are than its plan says, or others
                train than these, or everyone: two sums over other sites would show what one of them adds.
        """
        among, names = self._among(head, "adding"), head.get("adding")
        if names is not None and 0 < len(set(names)) < MIN_CLIENTS:
            raise Unreadable(f"a sum over fewer than {MIN_CLIENTS} sites is asked for")
        if head.get("kind") != "round":
            return among
        adding, planned = set(self.roster if names is None else names), self._planned(head["round"])
        if adding and adding != planned:
            raise Unreadable("others are to report than the study's participation says")
        self.trains(head)
        if set(head.get("training", self.roster)) not in (planned, set(self.roster)):
            raise Unreadable("others are to train than the study's participation says")
        return among

    def _planned(self, number: int) -> set[str]:
        """Who reports in a round: it follows from the study and its roster."""
        options = self.expected.options
        chosen = draw_participants(
            client_keys(self.roster), number, options.seed, options.asked, least_reporting(options)
        )
        return {self.roster[j] for j in chosen}

    def trains(self, head: Mapping[str, Any]) -> bool:
        """Whether this site is to compute in a round."""
        return self._among(head, "training")

    def no_message(self) -> State:
        """Zeros of a message's form."""
        return {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in self.expected.message.items()}

    def message(self, shared: State, sent: State, *, diverged: bool, reports: bool) -> Part:
        """A round's message, as the server's :class:`~hierfl.inference.server.receiver.Receiver` would have it.

        With noise on a sum each message has its share of that, and counts, whatever is in it beside the noise.

        Args:
            shared: as broadcast.
            sent: {"group|key": tensor}; empty where the computation has failed.
            diverged: whether it has.
            reports: whether a message is wanted.
        """
        if self.always and reports:
            return sent, [1, 0, 0]
        if diverged or not reports or not sent:
            return self.no_message(), [0, int(diverged), 0]
        device, ratio = next(iter(sent.values())).device, self.expected.options.max_message_ratio
        receiver = Receiver(self.expected.exchange, shared, 1, device, ratio, self.clients, fixed=True)
        message = {group: {k: v[None] for k, v in state.items()} for group, state in nested(sent).items()}
        if not bool(receiver.add(message, [0])[0]):
            log.warning("this round's message is not sent: not finite, too large, or not what the method declares")
            return self.no_message(), [0, 0, 1]
        clamped = {group: receiver.clamped(group, state) for group, state in message.items()}
        return {f"{g}|{k}": v[0] for g, state in clamped.items() for k, v in state.items()}, [1, 0, 0]

    def scores(self, metrics: State | None, kinds: int) -> Part:
        """Sums of metrics.

        Args:
            metrics: this site's own, as of :func:`.wire.flat_scores`; None where it has none to add.
            kinds: of prediction.
        """
        no_scores = marked(flat_scores(self.expected.no_scores(kinds)), self.clients)
        if metrics is None:
            return no_scores, [0, 0, 0]
        return self._checked(metrics, check_scores, "scores", marked(metrics, self.clients), no_scores)

    def answer(self, sums: State, *, adds: bool) -> Part:
        """An answer to a calibration's question.

        Args:
            sums: this site's own.
            adds: whether it is to add them.
        """
        numbers = marked(sums, self.clients)
        nothing = {name: torch.zeros_like(value) for name, value in numbers.items()}
        if not adds:
            return nothing, [0, 0, 0]
        return self._checked(sums, check_calibration, "sums of a calibration", numbers, nothing)

    def sums(self, sums: State) -> Part:
        """Sums for the report, and of what a new client begins with."""

        def check(numbers: Mapping[str, Tensor]) -> None:
            check_size(check_form(numbers, form_of_state(numbers)), self.clients)
            if not fits(numbers, self.clients):
                raise Unreadable("a number is beyond what masks carry")

        return self._checked(sums, check, "sums", sums, {k: torch.zeros_like(v) for k, v in sums.items()})

    @staticmethod
    def _checked(
        sums: State, check: Callable[[Mapping[str, Tensor]], None], what: str, numbers: State, nothing: State
    ) -> Part:
        """What is sent where a check passes, and where it does not."""
        try:
            check(sums)
        except Unreadable as error:
            log.warning("the %s are not sent: %s", what, error)
            return nothing, [0, 0, 1]
        return numbers, [1, 0, 0]


class Prepared(Protocol):
    """A :class:`~hierfl.inference.engines.remote.preparation.PreparedSite`."""

    @property
    def site(self) -> Any:
        """What answers once it is prepared; None before."""
        ...

    def answer(self, request: bytes) -> bytes:
        """What it answers to a plain request."""
        ...


class Contributing:
    """What a prepared site adds to a sum, for :class:`.masks.site.MaskedSite`.

    Args:
        site: answers plain requests.
        clients: J.
        fits: whether broadcast values are within bounds. Where they are not the site has no message, and says so
            under the masks. None where no one asks.
    """

    def __init__(self, site: Prepared, clients: int, fits: Fits | None = None) -> None:
        self.site, self.clients, self.fits = site, clients, fits

    def __call__(self, request: bytes) -> Contribution | bytes:
        """What it adds, or a refusal as it is sent.

        Args:
            request: without masks.
        """
        question, values = decode(request)
        within = self.fits is None or self.fits(question, values)
        if not within and question["kind"] == "round":  # its own values stay as they are
            return Contribution(self.site.site.part.expected.message, refused=True)
        reply = self.site.answer(request)
        head, numbers = decode(reply)
        if refusal(head) or "error" in head:
            return reply
        form = form_of_state(numbers)
        if not within:
            return Contribution(form, refused=True)
        if "counts" not in head and not fits(numbers, self.clients):  # sums before the first round
            log.warning("the sums are not sent: a number is not finite, or beyond what masks carry")
            return Contribution(form, refused=True)
        reported, diverged, refused = (bool(count) for count in head.get("counts", (1, 0, 0)))
        return Contribution(form, numbers if reported else {}, reported, diverged, refused)
