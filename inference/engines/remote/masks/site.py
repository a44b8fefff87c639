"""A site whose answers are masked: of its message nothing leaves but what is in a sum over sites.

It stands before a prepared site, and sees plain requests. A masked question is a question as ever with one more entry
of its header, ``masks``; see :mod:`.question`. What a server asks beside that:

- ``keys``: public keys of an epoch, signed; ``masks`` holds ``epoch`` and ``slots``;
- ``shares``: shares of the secrets of all slots, encrypted to the others; ``masks`` holds ``epoch`` and ``keys``;
- ``sign``: a signature of a list of survivors; ``masks`` holds ``epoch``, ``group`` and ``list``;
- ``open``: shares for the sum over these; ``masks`` holds ``signatures`` and this site's ``packets``, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from hierfl.errors import UserError

from ....state import State
from ..answering import Desk
from ..keys import Identity, PublicCard
from ..refusals import Refused
from ..wire import LARGEST_HEADER, Handshake, Unreadable, header
from .claims import CLAIMS_FILE, Claims, FileClaims
from .dealing import PACKET_BYTES, packets
from .groups import FEWEST, groups_of, threshold
from .keyring import Keyring
from .layout import Layout
from .opening import Opening
from .parts import COUNTS, KEYS, MASKED, OPEN, OVER_SURVIVORS, SHARES, SIGN, Contribute, Mode
from .past import Past
from .presence import presence_packets, spoilt
from .question import Question, asked_of, without_masks
from .shamir import SHARE_BYTES
from .signed_keys import MOST_SLOTS
from .streams import add_pairs, add_stream, digest_of, self_key
from .survivors import is_number
from .words import Words

#: bytes of tensors of the largest request; what is behind the masks has bounds of its own
LARGEST = 2**30


class Inner(Protocol):
    """What masks stand before: a :class:`~hierfl.inference.engines.remote.preparation.PreparedSite`."""

    handshake: Handshake
    patient: bool

    @property
    def basis(self) -> str:
        """Digest of the sums over all sites with which it began; empty before."""

    def answer(self, request: bytes) -> bytes:
        """What it answers to a plain request."""
        ...


class MaskedSite:
    """A site that takes part in masked sums alone.

    Args:
        inner: the site without masks.
        identity: its keys; its name is the client's.
        cards: of all clients on the roster, itself included.
        folder: its own, ``masks`` of the site's folder: keys are kept in it, readable by this user alone.
        contribute: what the site adds to a sum, by its own checks, from the plain request without masks.
        mode: of its rounds and scores; everything else is summed over all.
        quorum: the fewest survivors, and the fewest that are to report, of which a sum is opened.
        groups: into how many groups the roster is divided; 0 for none.
        claims: where it is kept what was answered; None for a file of ``folder``.

    Attributes:
        inner: as given. What is not named here is asked of it: ``site``, ``data``, ``ended``, ``closed``.

    Raises:
        UserError: for fewer than three clients, or keys that are not those of the roster.
    """

    def __init__(
        self, inner: Inner, identity: Identity, cards: Mapping[str, PublicCard], folder: Path,
        contribute: Contribute, *, mode: Mode = "whole", quorum: int = FEWEST, groups: int = 0,
        claims: Claims | None = None,
    ) -> None:  # fmt: skip
        if cards.get(identity.name) != identity.card:
            raise UserError(f"the keys of {identity.name} are not those of its card on the roster: it is another's")
        self.inner, self.identity, self.cards, self.contribute = inner, identity, dict(cards), contribute
        self.handshake, self.mode, self.quorum = inner.handshake, mode, quorum
        self.everyone = sorted(cards)
        self.groups = groups_of(self.everyone, groups, self.handshake.study) if groups else []
        groups_of(self.everyone, groups, self.handshake.study)
        self.claims = FileClaims(folder / CLAIMS_FILE) if claims is None else claims
        self.ring = Keyring(identity, cards, self.handshake.study, folder)
        self.past = Past(folder, self.handshake.study)
        self.desk = Desk(identity.name, self.handshake, torch.device("cpu"), LARGEST_HEADER + LARGEST)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # before it is there
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def patient(self) -> bool:
        """Whether an error of the disk is raised, so that the caller can ask again; else it is a failure."""
        return self.desk.patient

    @patient.setter
    def patient(self, value: bool) -> None:
        self.desk.patient = self.inner.patient = value

    def answer(self, request: bytes) -> bytes:
        """What it answers; see :class:`~hierfl.inference.engines.remote.answering.Desk`.

        hello, finish and ended go to the inner site as they are. What :data:`.parts.MASKED` names is answered with
        masks, or refused ("policy") where it has none.
        """
        try:
            kind = header(request).get("kind")
        except Unreadable:
            kind = None
        if not isinstance(kind, str):
            return self.inner.answer(request)
        own = {KEYS: self._keys, SHARES: self._shares, SIGN: self._sign, OPEN: self._open}
        if kind in own:
            return self.desk.answer(request, own)
        if kind in MASKED:
            return self.desk.answer(request, {kind: partial(self._masked, request)})
        return self.inner.answer(request)

    # -- keys ---------------------------------------------------------------------------------------------------

    def _keys(self, head: Mapping[str, Any], tensors: State, digest: str) -> bytes:
        masks = _table(head)
        number, slots = masks.get("epoch"), masks.get("slots")
        if not is_number(number, 1) or not is_number(slots, 0, MOST_SLOTS) or bool(slots) != (self.mode == "shares"):
            raise Unreadable("it asks for no keys of this study")
        if number < self.ring.number or (number == self.ring.number and slots != self.ring.count):
            return self._other_keys(head)
        self.ring.begin(number, slots)
        return self.desk.says({"round": head.get("round"), "epoch": number, "keys": self.ring.text})

    def _other_keys(self, head: Mapping[str, Any]) -> bytes:
        """What is said where a question is of other keys than this site has."""
        return self.desk.says({"round": head.get("round"), "rekey": self.ring.number})

    def _has(self, masks: Mapping[str, Any]) -> bool:
        """Whether its keys are those of the request; takes the others' where they come with it."""
        if masks.get("epoch") != self.ring.number:
            return False
        if self.ring.table is None and "keys" in masks:
            self.ring.accept(masks["keys"])
        return self.ring.table is not None and self.ring.table.digest == masks.get("table")

    def _group(self, masks: Mapping[str, Any]) -> list[str]:
        """Names of a whole sum, ascending."""
        if (number := masks.get("group")) is None:
            return self.everyone
        if not is_number(number) or number >= len(self.groups) or self.identity.name not in self.groups[number]:
            raise Unreadable("its group is not this site's")
        return self.groups[number]

    def _shares(self, head: Mapping[str, Any], tensors: State, digest: str) -> bytes:
        masks = _table(head)
        if self.mode != "shares":
            raise Refused("this study's sums are of all: it needs no shares", "policy")
        if not self._has(masks):
            return self._other_keys(head)
        everyone = self._dealt_among()
        made = [packets(self.ring, slot, everyone, threshold(len(everyone))) for slot in range(self.ring.count)]
        data = b"".join(packet for row in made for packet in row)
        shape = (self.ring.count, len(made[0]), PACKET_BYTES)
        packets_tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(shape)
        return self.desk.says({"round": head.get("round"), "epoch": self.ring.number}, {"packets": packets_tensor})

    def _dealt_among(self) -> list[str]:
        """Those among whom shares are dealt: the site's group.

        Raises:
            Unreadable: where too few of it have keys.
        """
        everyone = next((group for group in self.groups if self.identity.name in group), self.everyone)
        assert self.ring.table is not None  # as of the callers
        if len(self.ring.table.keys.keys() & set(everyone)) < threshold(len(everyone)):
            raise Unreadable("too few sites have keys")
        return everyone

    # -- a masked question --------------------------------------------------------------------------------------

    def _masked(self, request: bytes, head: Mapping[str, Any], tensors: State, digest: str) -> bytes:
        if "masks" not in head:
            raise Refused("this study's answers are masked, and this question asks for one that is not", "policy")
        masks = _table(head)
        if not self._has(masks):
            return self._other_keys(head)
        everyone, members = self._group(masks), masks.get("members")
        if isinstance(members, list) and self.identity.name not in members:
            return self._other_keys(head)  # it has dealt no shares in this epoch: a later one has it again
        question = Question.read(head, tensors, self.identity.name, everyone, self.ring.roster)
        self._check(question, head["kind"], everyone)
        self.past.check(head, masks, self.inner.basis)
        if question.mode == "shares":
            self._take_slot(question)
        else:
            self.claims.claim(f"sum {question.broadcast}", question.survived(question.members).opens)
            if (which := asked_of(head)) is not None:
                what = f"adding {digest_of('adding', self.ring.roster, which)}"
                self.claims.claim(what, digest_of("names", head.get("adding")))
        part = self.contribute(without_masks(request))
        if isinstance(part, bytes):
            return part
        self.past.note(head, tensors)
        layout = Layout(part.form, len(self.everyone))
        row = layout.row(part)
        reported = bool(row[COUNTS.index("reported")])
        if question.mode == "whole" and self.identity.name in question.reporting and not reported:
            row = spoilt(row, self.ring, question.context, layout)
        self._mask(row, question, layout.words)
        answer = {"masked": torch.from_numpy(row.view("<i8"))}
        if question.mode == "shares":
            answer |= {"told": presence_packets(self.ring, question.context, question.members, reported)}
        covered = b"".join(value.numpy().tobytes() for value in answer.values())
        self.claims.claim(f"mask {question.context}", hashlib.sha256(covered).hexdigest())
        if question.mode == "shares":
            self.ring.note(question.slot, question={**question.answered(), "there": reported})
        return self.desk.says({"round": head.get("round"), "masked": True}, answer)

    def _check(self, question: Question, kind: str, everyone: list[str]) -> None:
        """Refuses a question whose sum would not hide each of those in it."""
        assert self.ring.table is not None  # as of the caller
        wanted = self.mode if kind in OVER_SURVIVORS else "whole"
        if question.mode != wanted or (question.group is not None) > (kind in OVER_SURVIVORS):
            raise Refused(f"sums of this kind are masked in mode {wanted}", "policy")
        if wanted == "shares" and everyone != self._dealt_among():
            raise Refused("sums with shares are of the group among which they were dealt", "policy")
        if not set(question.members) <= self.ring.table.keys.keys():
            raise Unreadable("a member has no keys")
        if not question.opens_over(question.members, len(everyone), FEWEST if self.groups else self.quorum):
            raise Refused("its sum would be over too few sites", "policy")

    def _take_slot(self, question: Question) -> None:
        """Takes the keys of a question for this one, and forgets those of the questions before.

        Raises:
            Refused: "answered", where they were used for another one, or its sum was closed without this site.
        """
        slot = self.ring.slot(question.slot)
        if slot.survivors and not slot.question:
            raise Refused("the sum of this question was closed without this site", "answered")
        assert self.ring.table is not None  # as of the callers
        self.claims.claim(f"slot {digest_of('slot', self.ring.table.digest, question.slot)}", question.context)
        self.ring.forget(question.slot)

    def _mask(self, row: np.ndarray, question: Question, words: Words) -> None:
        """Adds the masks of a question to what the site says, in place."""
        name, use = self.identity.name, str(question.slot) if question.mode == "shares" else "pair"
        others = ((other, self.ring.secret_with(other, use)) for other in question.members if other != name)
        add_pairs(row, name, others, question.context, words)
        if question.mode == "shares":
            seed = bytes.fromhex(self.ring.slot(question.slot).seed)
            add_stream(row, self_key(seed, question.context, name), words)

    # -- the sum over survivors ---------------------------------------------------------------------------------

    def _sign(self, head: Mapping[str, Any], tensors: State, digest: str) -> bytes:
        masks = _table(head)
        if self.mode != "shares" or not self._has(masks):
            return self._other_keys(head)
        opening = self._opening(masks)
        if (too_few := opening.too_few(masks)) is not None:
            return self.desk.says({"round": head.get("round"), "too_few": too_few})
        signature = opening.sign(masks)
        return self.desk.says({"round": head.get("round"), "signature": signature.hex()})

    def _open(self, head: Mapping[str, Any], tensors: State, digest: str) -> bytes:
        masks = _table(head)
        if self.mode != "shares" or not self._has(masks):
            return self._other_keys(head)
        given = self._opening(masks).open(masks)
        data = torch.frombuffer(bytearray(b"".join(given.values())), dtype=torch.uint8).reshape(-1, SHARE_BYTES)
        return self.desk.says({"round": head.get("round"), "of": list(given)}, {"shares": data})

    def _opening(self, masks: Mapping[str, Any]) -> Opening:
        everyone = self._dealt_among()
        if self._group(masks) != everyone:
            raise Unreadable("its group is not the one among which shares were dealt")
        return Opening(self.ring, self.claims, self.cards, everyone, FEWEST if self.groups else self.quorum)


def _table(head: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entry ``masks`` of a request's header."""
    masks = head.get("masks")
    if not isinstance(masks, Mapping):
        raise Unreadable("it says nothing of masks")
    return masks
