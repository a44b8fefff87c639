"""What the server carries between sites for masked sums: signed keys, and packets of shares."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hierfl.errors import UserError

from ....state import State
from ..keys import PublicCard
from ..questions import Questions
from ..wire import Unreadable
from .dealing import PACKET_BYTES
from .groups import threshold
from .parts import KEYS, SHARES
from .question import fewest
from .server_state import PACKETS_FILE, ServerState, read_tensors, write_tensors
from .signed_keys import Epoch, KeyTable, SiteKeys, roster_digest
from .survivors import is_number

log = logging.getLogger("hierfl")
#: keys of all slots and sites at most, so that they fit into a header
_MOST_KEYS = 6000
Lacking = dict[int, dict[str, Any]]
Answers = dict[int, tuple[dict[str, Any], State]]


class Carrying:
    """The server's part beside sums.

    Args:
        questions: asks the sites.
        cards: of all clients on the roster.
        folder: the server's own.
        groups: names among whom shares are dealt, ascending.
        quorum: the fewest of a group that a sum is over.
        slots: for how many questions keys and shares are dealt at once; 0 without shares.
        greet: see :class:`.server.MaskedSums`.

    Attributes:
        state: what is on the disk.
    """

    def __init__(
        self, questions: Questions, cards: Mapping[str, PublicCard], folder: Path, groups: Sequence[Sequence[str]],
        quorum: int, slots: int, greet: Callable[[Sequence[int]], Sequence[int]] | None,
    ) -> None:  # fmt: skip
        if lacking := [name for name in questions.ids if name not in cards]:
            raise UserError(f"masked sums need the card of every client: {lacking[0]} has none in study.toml")
        self.questions, self.folder, self.quorum, self.greet = questions, folder, quorum, greet
        self.cards = {name: cards[name] for name in questions.ids}
        self.groups = [list(group) for group in groups]
        self.slots = min(slots, max(1, _MOST_KEYS // len(questions.ids)))
        self.index_of = {name: index for index, name in enumerate(questions.ids)}
        self.state = ServerState.load(folder, questions.handshake.study, roster_digest(self.cards))
        self._table: KeyTable | None = None
        self._packets: dict[str, Tensor] = {}
        self._rekeyed = False

    # -- asking -------------------------------------------------------------------------------------------------

    def asked(
        self, question: Mapping[str, Any], tensors: State, own: Mapping[int, Mapping[str, Any]], most: int
    ) -> Answers:
        """What sites answer, without those that have other keys; who comes late is greeted first.

        Args:
            about, tensors, most: as of :meth:`~hierfl.inference.engines.remote.questions.Questions.asked`.
            own: what the header says to each that is asked.
        """
        self.state.save(self.folder)
        answers = self._asked_once(question, tensors, own, most)
        late = [index for index in own if self.questions.ids[index] in self.questions.unprepared]
        if late and self.greet is not None:
            greeted = {index: own[index] for index in self.greet(late)}
            answers |= self._asked_once(question, tensors, greeted, most) if greeted else {}
        newly_told = {self.questions.ids[index] for index in answers} - set(self.state.told)
        if self.state.fixed and newly_told and question["kind"] != KEYS:
            self.state.told = sorted({*self.state.told, *newly_told})
        return {index: answers[index] for index in sorted(answers)}

    def _asked_once(
        self, question: Mapping[str, Any], tensors: State, own: Mapping[int, Mapping[str, Any]], most: int
    ) -> Answers:
        self._rekeyed, answers = False, {}
        for index, (head, tensors_of_site) in self.questions.asked(question, tensors, sorted(own), most, own).items():
            name = self.questions.ids[index]
            if "rekey" not in head and name not in self.questions.unprepared:
                answers[index] = head, tensors_of_site
            elif is_number(head.get("rekey")):
                log.info("%s has other keys: new ones are made", name)
                self.state.stale = self._rekeyed = True
                self.state.floor = max(self.state.floor, head["rekey"])
        return answers

    def begins_anew(self) -> bool:
        """Whether a site had other keys when it was asked last: what is asked next is asked under new ones."""
        return self._rekeyed

    # -- keys and shares ----------------------------------------------------------------------------------------

    @property
    def table(self) -> KeyTable:
        """The signed keys of the present epoch, once they are fixed."""
        state = self.state
        epoch = Epoch(state.study, state.roster, state.epoch, self._count)
        if self._table is None or self._table.epoch != epoch or self._table.texts() != state.keys:
            self._table = KeyTable.read(state.keys, epoch, self.cards)
        return self._table

    @property
    def _count(self) -> int:
        return self.slots if self.state.slots < 0 else self.state.slots

    def untold(self, name: str) -> dict[str, Any]:
        """What the header says of keys to a site that lacks them."""
        return {} if name in self.state.told else {"keys": self.state.keys}

    def _collect(self) -> None:
        """Asks for keys that are missing, as long as they can still come."""
        if self.state.stale or not self.state.epoch:
            self._begin()
        for _ in range(2):
            question = {"kind": KEYS, "round": 0, "masks": {"epoch": self.state.epoch, "slots": self._count}}
            lacking: Lacking = {index: {} for name, index in self.index_of.items() if name not in self.state.keys}
            epoch = Epoch(self.state.study, self.state.roster, self.state.epoch, self._count)
            for index, (head, _) in self.asked(question, {}, lacking, 0).items() if lacking else ():
                name = self.questions.ids[index]
                try:
                    self.state.keys[name] = SiteKeys.read(head.get("keys"), epoch, self.cards[name]).text
                except Unreadable as error:
                    self.questions.refuse(index, KEYS, error)
            if not self.state.stale:
                return
            self._begin()

    def _begin(self) -> None:
        self.state.begin()
        self.state.slots = self.slots

    def has_all(self) -> bool:
        """Makes sure that there are keys of all sites."""
        state = self.state
        if state.stale or not state.epoch or (state.fixed and len(state.keys) < len(self.index_of)):
            state.stale = True
            self._collect()
        elif not state.fixed:
            self._collect()
        if len(state.keys) < len(self.index_of):
            return False
        state.fixed = True
        return True

    def has_slot(self) -> bool:
        """Makes sure that there are keys and shares of enough sites for one more question."""
        state = self.state
        if state.stale or not state.epoch or state.next >= self._count:
            state.stale = True
            self._collect()
        elif not state.fixed:
            self._collect()
        if not self._enough(state.keys):
            return False
        state.fixed = True
        if state.next == 0 and len(state.dealt) < len(state.keys):
            self._deal()
        return self._enough(state.dealt)

    def _enough(self, names: Mapping[str, object] | Sequence[str]) -> bool:
        return all(
            len(set(names) & set(group)) >= max(threshold(len(group)), fewest(len(group), self.quorum))
            for group in self.groups
        )

    def _deal(self) -> None:
        """Asks for packets of shares of those who have keys, and have dealt none."""
        state, table = self.state, self.table
        masks = {"epoch": state.epoch, "table": table.digest, "keys": state.keys}
        lacking: Lacking = {self.index_of[name]: {} for name in state.keys if name not in state.dealt}
        most = self._count * len(self.index_of) * PACKET_BYTES
        packets = self.packets()
        for index, (_, tensors) in self.asked({"kind": SHARES, "round": 0, "masks": masks}, {}, lacking, most).items():
            name, dealt = self.questions.ids[index], tensors.get("packets")
            shape = (self._count, len(self.recipients(name)), PACKET_BYTES)
            if dealt is None or dealt.dtype != torch.uint8 or tuple(dealt.shape) != shape:
                self.questions.refuse(index, SHARES, Unreadable("its packets are none"))
                continue
            packets[name] = dealt.cpu()
        write_tensors(self.folder / PACKETS_FILE, table.digest, packets)
        state.dealt = sorted(packets)
        state.save(self.folder)

    def packets(self) -> dict[str, Tensor]:
        """Packets of shares that sites have dealt in this epoch, {sender: (slots, recipients, bytes)}."""
        if self._packets.keys() != set(self.state.dealt):
            self._packets = read_tensors(self.folder / PACKETS_FILE, self.table.digest)
        return self._packets

    def _group_of(self, name: str) -> list[str]:
        return next(group for group in self.groups if name in group)

    def recipients(self, sender: str) -> list[str]:
        """The members to whom a site deals shares, ascending."""
        return [name for name in self._group_of(sender) if name != sender and name in self.state.keys]

    def slot_of(self, digest: str) -> int:
        """The slot of a question; the same one as long as no other question is asked."""
        if self.state.question.get("digest") != digest:
            self.state.question = {"digest": digest, "slot": self.state.next}
            self.state.next += 1
        slot: int = self.state.question["slot"]
        return slot
