"""The server's end of masked sums: it asks all sites, carries their keys and shares, and sees sums alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ....state import State, StateForm
from ..keys import PublicCard
from ..questions import Questions
from ..wire import Unreadable, under
from .carrying import Carrying
from .groups import FEWEST, groups_of
from .layout import Layout
from .lists import Listed, Lists
from .parts import COUNTS, OVER_SURVIVORS, Mode, Own, Total
from .past import Past
from .presence import TOLD_BYTES
from .question import Question, own_entries, tensors_digest
from .recovery import Recovery
from .server_state import ROWS_FILE, as_row, as_tensor, read_tensors, write_tensors
from .streams import digest_of

log = logging.getLogger("hierfl")
#: how often a question is asked under other keys, where a site has lost its own
MAX_TRIES = 3
#: whose answers are in a sum, and the sum, (n,), uint64; or how many messages would be in one that sites do not open
Opened = tuple[list[str], np.ndarray | int]
#: what a masked answer holds: its integers; and with shares what it says to other sites
Answer = tuple[np.ndarray, torch.Tensor | None]


class MaskedSums:
    """Asks for masked sums.

    What has to survive a kill is in its folder: keys, which slots are used, who has survived a question, and the sum
    of their masked answers. A server that was resumed goes on with the same bits.

    Args:
        questions: asks the sites.
        cards: of all clients on the roster; checks what sites have signed.
        folder: the server's own.
        mode: of rounds and scores; everything else is summed over all.
        quorum: the fewest survivors, and the fewest that are to report, of which a sum is opened.
        groups: into how many groups the roster is divided; 0 for none.
        slots: how many questions keys and shares are dealt for at once.
        greet: tells clients what all have agreed on, and returns those that have answered; None where no one needs it.

    Attributes:
        basis: digest of the sums over all sites with which these begin; empty where there are none.

    Raises:
        UserError: for fewer than three clients, in all or in a group.
    """

    def __init__(
        self, questions: Questions, cards: Mapping[str, PublicCard], folder: Path, *, mode: Mode = "whole",
        quorum: int = FEWEST, groups: int = 0, slots: int = 8,
        greet: Callable[[Sequence[int]], Sequence[int]] | None = None,
    ) -> None:  # fmt: skip
        self.questions, self.mode, self.folder = questions, mode, folder
        self.everyone, study = sorted(questions.ids), questions.handshake.study
        self.groups = groups_of(self.everyone, groups, study) if groups else []
        groups_of(self.everyone, groups, study)
        self.quorum = FEWEST if groups else quorum
        dealt, among = slots if mode == "shares" else 0, self.groups or [self.everyone]
        self.past, self.basis = Past(folder, study), ""
        self.carrying = Carrying(questions, cards, folder, among, self.quorum, dealt, greet)

    def greeted_by(self, greet: Callable[[Sequence[int]], Sequence[int]], basis: str) -> None:
        """Says who tells clients what all have agreed on, once that is known: ``greet``, and ``basis``, its digest."""
        self.carrying.greet, self.basis = greet, basis

    def ask(self, question: Mapping[str, Any], tensors: State, form: StateForm, own: Own | None = None) -> Total | None:
        """The sum of what all sites answer; None where it cannot be opened: too few have answered.

        Args:
            question: the request's header, with "kind" and "round".
            tensors: what goes with it.
            form: of the sum.
            own: what the header says of single clients; all sites see it, since their sum depends on it.
        """
        asked = Asked(
            self, question, tensors, form, own or {}, grouped=bool(self.groups) and self._mode(question) == "shares"
        )
        parts = self._opened(asked)
        sums = [opened for opened in parts if opened is not None]
        if len(sums) < len(parts):
            return None
        survivors, rows = [name for names, _ in sums for name in names], [row for _, row in sums]
        if any(isinstance(row, int) for row in rows):
            messages = sum(row if isinstance(row, int) else int(row[COUNTS.index("reported")]) for row in rows)
            return asked.total(survivors, messages)
        return asked.total(survivors, asked.layout.words.added(row for row in rows if not isinstance(row, int)))

    def ask_groups(
        self, question: Mapping[str, Any], tensors: State, form: StateForm, own: Own | None = None
    ) -> list[Total | None]:  # fmt: skip
        """The same for each group on its own, of rounds and scores; the one of all where there are no groups."""
        asked = Asked(self, question, tensors, form, own or {}, grouped=bool(self.groups))
        return [None if opened is None else asked.total(*opened) for opened in self._opened(asked)]

    def _mode(self, question: Mapping[str, Any]) -> Mode:
        return self.mode if question["kind"] in OVER_SURVIVORS else "whole"

    def _opened(self, asked: Asked) -> list[Opened | None]:
        for _ in range(MAX_TRIES):
            parts = asked.whole() if asked.mode == "whole" else asked.over_survivors()
            if parts is not None:
                return parts
        kind, number = asked.about["kind"], asked.about["round"]
        log.warning("no sum (%s, round %d): sites have lost their keys again and again", kind, number)
        return [None] * len(asked.parts)


class Asked:
    """One masked question, to all sites.

    Args:
        sums: who asks.
        about, tensors, form, own: as of :meth:`MaskedSums.ask`.
        grouped: whether there is a sum for each group.
    """

    def __init__(
        self, sums: MaskedSums, question: Mapping[str, Any], tensors: State, form: StateForm, own: Own, *, grouped: bool
    ) -> None:  # fmt: skip
        self.sums, self.about, self.tensors, self.grouped = sums, dict(question), tensors, grouped
        self.mode: Mode = sums.mode if question["kind"] in OVER_SURVIVORS else "whole"
        self.parts = sums.groups if grouped else [sums.everyone]
        self.layout = Layout(form, len(sums.everyone))
        self._values = tensors_digest(tensors)
        sums.past.note(question, tensors)
        self.index_of = {name: index for index, name in enumerate(sums.questions.ids)}
        counted = sums.questions.counted
        self.own = {name: {"counted": int(counted[k]), **own.get(k, {})} for name, k in self.index_of.items()}

    def _questions(self, members: Sequence[Sequence[str]], slot: int) -> list[Question]:
        """What each part is asked, as its sites understand it."""
        questions, carrying = [], self.sums.carrying
        head = {**self.about, "handshake": self.sums.questions.handshake.table()}
        if self.sums.questions.restarts:
            head["restart"] = self.sums.questions.restarts
        for number, part in enumerate(self.parts):
            name = members[number][0]
            masks = self._masks(number, members[number], slot)
            request = {**head, **self.own[name], "client": name, "masks": masks}
            questions.append(Question.read(request, self.tensors, name, part, carrying.state.roster))
        return questions

    def _masks(self, number: int, members: Sequence[str], slot: int) -> dict[str, Any]:
        table = self.sums.carrying.table
        entries: dict[str, Any] = {"epoch": table.epoch.number, "table": table.digest, "mode": self.mode}
        entries |= {"group": number} if self.grouped else {}
        entries |= {"slot": slot, "members": list(members)} if self.mode == "shares" else {}
        entries |= {} if self.about["kind"] == "prepare" else {"basis": self.sums.basis}
        entries["past"] = self.sums.past.before(self.about)
        return {**entries, "own": own_entries({name: self.own[name] for name in members})}

    def _rows(self, members: Sequence[Sequence[str]], slot: int, more: Sequence[str] = ()) -> dict[str, Answer]:
        """Masked answers by name; who has other keys is noted.

        Args:
            members: of each part.
            slot: of the keys.
            more: who is asked beside them, since they may be there again.
        """
        carrying, own = self.sums.carrying, {}
        for number, part in enumerate(self.parts):
            for name in part:
                if name in members[number] or name in more:
                    masks = self._masks(number, members[number], slot)
                    if name in members[number]:
                        masks |= carrying.untold(name)
                    own[self.index_of[name]] = {**self.own[name], "masks": masks}
        others = {name: len(part) - 1 for part in members for name in part}
        most = 8 * self.layout.size + TOLD_BYTES * (max(others.values()) if self.mode == "shares" else 0)
        answers: dict[str, Answer] = {}
        for index, (head, tensors) in carrying.asked(self.about, self.tensors, own, most).items():
            name = self.sums.questions.ids[index]
            try:
                row = tensors.get("masked")
                if head.get("masked") is not True or row is None:
                    raise Unreadable("it is not masked")
                form: StateForm = {"masked": ((self.layout.size,), torch.int64)}
                if self.mode == "shares":
                    form["told"] = (others.get(name, 0), TOLD_BYTES), torch.uint8
                if {key: (tuple(value.shape), value.dtype) for key, value in tensors.items()} != form:
                    raise Unreadable("it is of another form")
                packets = tensors["told"].cpu() if self.mode == "shares" else None
                answers[name] = row.cpu().numpy().view(np.uint64), packets
            except Unreadable as error:
                self.sums.questions.refuse(index, self.about["kind"], error)
        return answers

    def total(self, survivors: Sequence[str], row: np.ndarray | int) -> Total | None:
        """What a sum says; None where its counts cannot be.

        Args:
            survivors: whose answers are in it.
            row: the sum, or how many messages would be in one that sites have not opened.
        """
        kind, number, sites = self.about["kind"], self.about["round"], sorted(self.index_of[name] for name in survivors)
        adding = self.about.get("adding", self.sums.everyone)
        messages = sum(name in adding for name in survivors)
        if isinstance(row, int):
            counts, sums = {"reported": row, "diverged": 0, "refused": max(0, messages - row)}, State()
        else:
            sums, counts = self.layout.read(row)
        if not all(0 <= counts[name] <= len(survivors) for name in COUNTS):
            log.warning("the sum (%s, round %d) is not used: its masked counts cannot be", kind, number)
            return None
        if isinstance(row, int) or (self.mode == "whole" and counts["reported"] < messages):
            log.warning(
                "the sum (%s, round %d) does not open: %d of %d messages are there; where one failed, its site's log "
                "says why", kind, number, counts["reported"], messages,
            )  # fmt: skip
            sums = self._nothing()
            return Total(sums, sites, counts["reported"], counts["diverged"], counts["refused"], opened=False)
        sums = {name: value.to(self.sums.questions.device) for name, value in sums.items()}
        return Total(sums, sites, counts["reported"], counts["diverged"], counts["refused"])

    def _nothing(self) -> State:
        """Zeros of the sum's form."""
        device = self.sums.questions.device
        return {k: torch.zeros(shape, dtype=dtype, device=device) for k, (shape, dtype) in self.layout.form.items()}

    def whole(self) -> list[Opened | None] | None:
        """Sums of all; None where it is to be asked under other keys."""
        carrying = self.sums.carrying
        if not carrying.has_all():
            return [None] * len(self.parts)
        questions = self._questions(self.parts, 0)
        least = self.sums.quorum
        if not all(q.opens_over(q.members, len(p), least) for q, p in zip(questions, self.parts, strict=True)):
            log.warning("no sum (round %d): too few are to report to hide one of them", self.about["round"])
            return [None] * len(self.parts)
        rows = self._rows(self.parts, 0)
        if carrying.begins_anew():
            return None
        return [
            (part, self.layout.words.added(rows[name][0] for name in part)) if rows.keys() >= set(part) else None
            for part in self.parts
        ]

    def over_survivors(self) -> list[Opened | None] | None:
        """Sums over those who have answered; None where it is to be asked under other keys."""
        carrying, state = self.sums.carrying, self.sums.carrying.state
        digest = digest_of(
            "asked", self.sums.questions.handshake.table(), self.sums.questions.restarts, self.about, self.own,
            self._values, [list(part) for part in self.parts],
        )  # fmt: skip
        renewed = state.stale and "survivors" not in state.question
        if (state.question.get("digest") != digest or renewed) and not carrying.has_slot():
            return None if carrying.begins_anew() else [None] * len(self.parts)
        slot = carrying.slot_of(digest)
        members = [[name for name in part if name in state.dealt] for part in self.parts]
        questions = self._questions(members, slot)
        path = self.sums.folder / ROWS_FILE
        if "survivors" not in state.question:
            asked_too = [name for name in self.sums.everyone if name not in state.dealt]
            rows = self._rows(members, slot, asked_too)
            survivors = {str(n): sorted(set(rows) & set(part)) for n, part in enumerate(members)}
            opening = {
                n: names for n, names in survivors.items()
                if questions[int(n)].opens_over(names, len(self.parts[int(n)]), self.sums.quorum)
            }  # fmt: skip
            if not opening:
                return None if carrying.begins_anew() else [None] * len(self.parts)
            summed = {
                n: as_tensor(self.layout.words.added(rows[name][0] for name in names)) for n, names in opening.items()
            }
            packets_by_name = {f"told/{name}": packets for name, (_, packets) in rows.items() if packets is not None}
            write_tensors(path, digest, {**summed, **packets_by_name})
            state.question["survivors"] = opening
            state.save(self.sums.folder)
        totals: list[Opened | None] = [None] * len(self.parts)
        opening, summed = state.question["survivors"], read_tensors(path, digest)
        lists = Lists(
            carrying, self.about["round"],
            {int(n): Listed(questions[int(n)].survived(names), under("told", summed)) for n, names in opening.items()},
            grouped=self.grouped,
        )  # fmt: skip
        for number, shares in lists.opened().items():
            survived = lists.listed[number].survived
            try:
                row = as_row(summed[str(number)].clone())
                row = Recovery(survived, carrying.table, self.parts[number]).unmasked(row, shares, self.layout.words)
            except Unreadable as error:
                log.warning("no sum (%s, round %d): %s", self.about["kind"], self.about["round"], error)
                continue
            totals[number] = list(survived.survivors), row
        for number, messages in lists.too_few.items():
            totals[number] = list(lists.listed[number].survived.survivors), messages
        return totals
