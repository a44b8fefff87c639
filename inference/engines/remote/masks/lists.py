"""Lists of survivors at the server: it has them signed, and carries shares for their sums."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import Any

import torch
from torch import Tensor

from ....state import State
from ..wire import Unreadable
from .carrying import Carrying
from .groups import threshold
from .parts import OPEN, SIGN
from .recovery import Shares
from .shamir import SHARE_BYTES
from .survivors import SurvivorList, is_number, sorted_names

log = logging.getLogger("hierfl")


@dataclass(frozen=True)
class Listed:
    """Survivors of one sum.

    Attributes:
        survived: the list.
        told: packets of each survivor for the other members, (members - 1, bytes); see :mod:`.presence`.
    """

    survived: SurvivorList
    told: Mapping[str, Tensor]

    def packets_for(self, name: str) -> str:
        """What survivors say to one member, in order of their names, as it is carried."""
        survived = self.survived
        rows = [
            self.told[sender][survived.members.index(name) - (sender < name)].numpy().tobytes()
            for sender in survived.survivors if sender != name
        ]  # fmt: skip
        return base64.b64encode(b"".join(rows)).decode()


class Lists:
    """Opens sums over survivors of one question.

    Args:
        carrying: the server's part beside sums.
        number: of the round.
        listed: of each group whose sum is to be opened.
        grouped: whether sums are of groups.

    """

    def __init__(self, carrying: Carrying, number: int, listed: Mapping[int, Listed], *, grouped: bool) -> None:
        self.carrying, self.number, self.listed, self.grouped = carrying, number, listed, grouped
        self.least = {group: threshold(len(carrying.groups[group])) for group in listed}
        self._few: dict[int, dict[str, int]] = {group: {} for group in listed}

    def opened(self) -> dict[int, Shares]:
        """Shares for the sums: {group: {whose secret: {who gives it: 66 bytes}}}."""
        signatures: dict[int, dict[str, str]] = {group: {} for group in self.listed}

        def sign(group: int, name: str, head: Mapping[str, Any], tensors: State) -> None:
            if is_number(few := head.get("too_few")):
                self._few[group][name] = few
                return
            self.listed[group].survived.signers({name: head.get("signature")}, self.carrying.cards)
            signatures[group][name] = str(head["signature"])

        self._asked(
            SIGN, self.listed, signatures, sign, lambda group, name: {"told": self.listed[group].packets_for(name)}
        )
        signed = {g: listed for g, listed in self.listed.items() if len(signatures[g]) >= self.least[g]}
        shares: dict[int, dict[str, dict[str, bytes]]] = {group: {} for group in signed}
        given: dict[int, dict[str, str]] = {group: {} for group in signed}

        def take(group: int, name: str, head: Mapping[str, Any], tensors: State) -> None:
            whose, data = sorted_names(head.get("of")), tensors.get("shares")
            if data is None or data.dtype != torch.uint8 or tuple(data.shape) != (len(whose), SHARE_BYTES):
                raise Unreadable("its shares are none")
            for other, row in zip(whose, data.cpu().numpy(), strict=True):
                shares[group].setdefault(other, {})[name] = row.tobytes()
            given[group][name] = ""

        def more(group: int, name: str) -> dict[str, Any]:
            chosen = dict(sorted(signatures[group].items())[: self.least[group]])
            return {"signatures": chosen, "packets": self._packets_for(name, signed[group].survived)}

        self._asked(OPEN, signed, given, take, more)
        return {group: listed for group, listed in shares.items() if len(given[group]) >= self.least[group]}

    @property
    def too_few(self) -> dict[int, int]:
        """The numbers of messages in groups whose sites do not sign, since too few messages are there."""
        return {
            group: median_low(few.values()) for group, few in self._few.items()
            if len(few) > len(self.listed[group].survived.members) - self.least[group]
        }  # fmt: skip

    def _asked(
        self, kind: str, listed: Mapping[int, Listed], done: Mapping[int, Mapping[str, str]],
        take: Callable[[int, str, Mapping[str, Any], State], None], more: Callable[[int, str], Mapping[str, Any]],
    ) -> None:  # fmt: skip
        """Asks survivors; where too few of them answer, the other members of their groups, too."""
        carrying = self.carrying
        groups = {name: group for group, listed_group in listed.items() for name in listed_group.survived.members}
        for survivors in (True, False):
            own: dict[int, dict[str, Any]] = {}
            for name, group in groups.items():
                listed_group = listed[group].survived
                if (name in listed_group.survivors) == survivors and len(done[group]) < self.least[group]:
                    if group in self.too_few:
                        continue  # too few are left to sign
                    masks = {
                        "epoch": carrying.state.epoch,
                        "table": carrying.table.digest,
                        "list": listed_group.as_json(),
                    }
                    masks |= {"group": group} if self.grouped else {}
                    own[carrying.index_of[name]] = {"masks": {**masks, **carrying.untold(name), **more(group, name)}}
            most = SHARE_BYTES * max(map(len, carrying.groups))
            answers = carrying.asked({"kind": kind, "round": self.number}, {}, own, most) if own else {}
            for index, (head, tensors) in answers.items():
                name = carrying.questions.ids[index]
                try:
                    take(groups[name], name, head, tensors)
                except Unreadable as error:
                    carrying.questions.refuse(index, kind, error)

    def _packets_for(self, name: str, survived: SurvivorList) -> str:
        """Packets of shares that the other members have dealt to a site, in order of names, as they are carried."""
        packets = self.carrying.packets()
        rows = [
            packets[sender][survived.slot, self.carrying.recipients(sender).index(name)].numpy().tobytes()
            for sender in survived.members if sender != name
        ]  # fmt: skip
        return base64.b64encode(b"".join(rows)).decode()
