"""Preparation: sums over all sites' data that have to be known before the first round."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from hierfl.errors import UserError
from hierfl.files import make_folder, shown, write_whole

from ...messages.form import LONGEST
from ...state import State, StateForm
from .answering import Desk
from .kept_bytes import decode_kept, encode_kept
from .masked_summing import HiddenSums
from .masks.question import basis_of
from .masks.server import MaskedSums
from .questions import Questions
from .refusals import Refused
from .row_counts import ROWS, UNLIKE_KEY, RowBounds
from .site import Site
from .summing import PlainSums, Summation, SumQuestion
from .wire import FORMAT, LARGEST_HEADER, Handshake, Unreadable, check_size, encode, flattened, header, nested

log = logging.getLogger("hierfl")
#: of a server's and of a site's folder: the sums over all sites
PREPARED_FILE = "prepared.safetensors"
#: kind of a message to a site that the server has given up
ENDED = "ended"
#: of a site's folder: why the study has ended without it
CLOSED_FILE = "ended.txt"
#: bytes of such sums: moments of some thousand columns
LARGEST_SUMS = 2**28


class Summing(Protocol):
    """What the sites' data are, to a server: how many rounds of sums they take, and what these look like."""

    @property
    def steps(self) -> int:
        """How many rounds of sums."""
        ...

    def form(self, before: Sequence[State]) -> StateForm:
        """The form of the sums of round ``len(before)``, given those over all sites of the rounds before."""
        ...


class SiteSums(Protocol):
    """One site's data, before it takes part."""

    def sums(self, before: Sequence[State]) -> State:
        """Its part of round ``len(before)``.

        Raises:
            UserError: where it has nothing to say, in words that hold none of its data.
        """
        ...

    def digest(self) -> str:
        """A fingerprint of its data."""
        ...


def prepare(
    questions: Questions, data: Summing, folder: Path, masks: MaskedSums | None = None, rows: RowBounds | None = None
) -> list[State]:
    """The sums over all sites, once and for all: they are kept, and those who join later are given them.

    Args:
        questions: asks the sites.
        data: what they are asked for.
        folder: the server's.
        masks: opens sums of masked answers; None where each answer is read.
        rows: what sites may declare, which is given what they have; None where nothing is known of it.

    Raises:
        UserError: where a site is missing: columns made without it would be others.
    """
    path, study = folder / PREPARED_FILE, questions.handshake.study
    if path.is_file():
        head, kept = read_sums(path, study)
        log.debug("sums over %s sites", head.get("sites"))
        if rows is not None and isinstance(counts := head.get(ROWS), dict):
            rows.rows_by_client.update({j: int(counts[name]) for j, name in enumerate(questions.ids) if name in counts})
            rows.unlike.extend(map(str, head.get(UNLIKE_KEY, ())))
        return kept
    totals: list[State] = []
    summing: Summation = HiddenSums(masks) if masks else PlainSums(questions)
    clients = len(questions.ids)
    for step in range(data.steps):
        form, everyone = data.form(totals), range(len(questions.ids))
        nothing = {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in form.items()}
        question = {"kind": "prepare", "round": 0, "step": step}
        check = partial(rows.check, step, clients) if rows else partial(check_size, clients=clients)
        note = partial(rows.note, step) if rows else None
        total = summing.total(SumQuestion(question, numbered(totals), nothing, everyone, check, note=note))
        if len(total.clients) < clients:
            raise questions.missing(
                everyone, f"{len(total.clients)} of {clients} sites have sent their sums (step {step + 1} of "
                f"{data.steps})", "go on when all have (--resume), or take those who cannot off the roster",
            )  # fmt: skip
        totals.append(total.sums)
        if rows:
            rows.compare(step, questions.ids)
    noted: dict[str, Any] = {}
    if rows and rows.rows_by_client:
        noted = {ROWS: {questions.ids[j]: n for j, n in rows.rows_by_client.items()}, UNLIKE_KEY: rows.unlike}
    _write(path, {"study": study, "sites": clients, **noted}, totals)
    return totals


def endings(
    clients: Iterable[str], handshake: Handshake, reason: str, *, done: bool = False
) -> dict[str, bytes]:  # fmt: skip
    """What sites hear where their server ends: a message for each client.

    Args:
        clients: who is written to.
        handshake: what server and sites have in common.
        reason: why it ends.
        done: whether the study has ended for good; else the server may be resumed.
    """
    message = {"kind": ENDED, "round": 0, "reason": reason[:LONGEST], "done": done, "handshake": handshake.table()}
    return {client: encode({**message, "client": client}, {}) for client in clients}


class PreparedSite:
    """A site that takes part once it knows the sums over all sites.

    Args:
        client: its name.
        handshake: what it has in common with its server.
        folder: its own.
        steps: rounds of sums.
        data: what it sums.
        make: the site, from the sums over all sites.

    Attributes:
        site: what answers once it is prepared; None before.
        closed: why the study has ended without this site; empty while it has not.

    Raises:
        UserError: where its data have changed since it was prepared, or sums that are kept cannot be used.
    """

    def __init__(
        self, client: str, handshake: Handshake, folder: Path, steps: int, data: SiteSums,
        make: Callable[[Sequence[State]], Site],
    ) -> None:  # fmt: skip
        self.handshake, self.folder, self.steps, self.data, self.make = handshake, folder, steps, data, make
        self.desk = Desk(client, handshake, torch.device("cpu"), LARGEST_HEADER + LARGEST_SUMS)
        self.totals: list[State] | None = None
        self.site: Site | None = None
        self._patient = False
        self.closed = _read_closed(folder / CLOSED_FILE)
        path = folder / PREPARED_FILE
        if path.is_file():
            head, totals = read_sums(path, handshake.study)
            if head.get("data") != data.digest():
                raise UserError(
                    f"the data are not those with which {folder} began this study: it goes on with the same"
                )
            self._ready(totals)

    @property
    def ended(self) -> bool:
        """Whether the study has, for this site."""
        return bool(self.closed) or (self.site is not None and self.site.state.ended)

    @property
    def basis(self) -> str:
        """Digest of the sums over all sites with which it began; empty before."""
        return basis_of(numbered(self.totals or []))

    @property
    def patient(self) -> bool:
        """Whether an error of the disk is raised, so that the caller can ask again; else it is a failure."""
        return self._patient

    @patient.setter
    def patient(self, value: bool) -> None:
        self._patient = self.desk.patient = value
        if self.site is not None:
            self.site.desk.patient = value

    def answer(self, request: bytes) -> bytes:
        """What it answers; see :class:`.answering.Desk`."""
        try:
            kind = header(request).get("kind")
        except Unreadable:
            kind = None
        if self.site is not None and kind not in ("hello", "prepare", ENDED):
            return self.site.answer(request)
        late = dict.fromkeys(("round", "scores", "sums", "calibration", "finish"), self._late)
        return self.desk.answer(
            request, {**late, "prepare": self._prepare, "hello": partial(self._hello, request), ENDED: self._ended}
        )

    def _late(self, head: Mapping[str, Any], tensors: State, digest: str) -> bytes:
        return self.desk.says({"error": "it has yet to hear what all have agreed on", "unprepared": True})

    def _ended(self, head: Mapping[str, Any], tensors: State, digest: str) -> bytes:
        reason = shown(str(head.get("reason", ""))[:LONGEST])
        if head.get("done") is not True:
            log.warning("the server has ended with an error, and may be resumed; this site waits for it: %s", reason)
        elif not self.ended:
            make_folder(self.folder)
            write_whole(self.folder / CLOSED_FILE, f"{reason}\n".encode(), mode=0o600)
            self.closed = reason or "it has ended"
            log.warning("the study has ended without this site: %s", reason)
        return self.desk.says({"round": 0})

    def _prepare(self, head: Mapping[str, Any], tensors: State, digest: str) -> bytes:
        before = unnumbered(tensors)
        if head.get("step") != len(before) or not 0 <= len(before) < self.steps:
            raise Unreadable("it is no step of this study's preparation")
        try:
            sums = self.data.sums(before)
        except Refused:
            raise
        except UserError as error:  # what is wrong with the data is this site's to know
            log.error("the data cannot be summed: %s", shown(error))
            raise Refused("its data cannot be summed: see the site's own log", "data") from error
        return self.desk.says({"round": 0}, sums)

    def _hello(self, request: bytes, head: Mapping[str, Any], tensors: State, digest: str) -> bytes:
        totals = unnumbered(tensors)
        if self.totals is None:
            if len(totals) != self.steps:
                raise Unreadable("it does not say what all sites have agreed on")
            site = self.make(totals)
            _write(self.folder / PREPARED_FILE, {"study": self.handshake.study, "data": self.data.digest()}, totals)
            self._ready(totals, site)
        elif not _same(totals, self.totals):
            raise Refused("its sums over all sites are others than those that this site began with", "answered")
        assert self.site is not None  # as of _ready
        return self.site.answer(request)

    def _ready(self, totals: list[State], site: Site | None = None) -> None:
        self.site, self.totals = site or self.make(totals), totals
        self.site.desk.patient = self._patient


def numbered(totals: Sequence[State]) -> State:
    """Sums of several rounds, as they are sent."""
    return flattened({str(step): sums for step, sums in enumerate(totals)})


def unnumbered(tensors: Mapping[str, torch.Tensor]) -> list[State]:
    """Undoes :func:`numbered`.

    Raises:
        Unreadable: where rounds are missing.
    """
    steps = nested(tensors)
    if sorted(steps) != sorted(map(str, range(len(steps)))):
        raise Unreadable("its sums are not those of the first rounds")
    return [dict(sorted(steps[str(step)].items())) for step in range(len(steps))]


def _same(first: Sequence[State], other: Sequence[State]) -> bool:
    flat, others = numbered(first), numbered(other)
    return flat.keys() == others.keys() and all(torch.equal(flat[name], others[name]) for name in flat)


def _read_closed(path: Path) -> str:
    return path.read_text("utf-8").strip() if path.is_file() else ""


def _write(path: Path, head: Mapping[str, Any], totals: Sequence[State]) -> None:
    make_folder(path.parent)
    write_whole(path, encode_kept({**head, "format": FORMAT}, numbered(totals)), mode=0o600)


def read_sums(path: Path, study: str) -> tuple[dict[str, Any], list[State]]:
    """Sums that were kept.

    Raises:
        UserError: for a damaged file, or one of another study.
    """
    try:
        head, tensors = decode_kept(path.read_bytes())
        totals = unnumbered(tensors)
    except Unreadable as error:
        raise UserError(f"{path} is damaged: {error}") from error
    if head.get("study") != study:
        raise UserError(f"{path} belongs to another study; a study needs a folder of its own")
    return head, totals
