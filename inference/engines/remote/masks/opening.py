"""A site's part in opening a sum over survivors: one list is signed, and of each site one share is given, ever."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from hierfl.plurals import counted

from ..keys import PublicCard
from ..refusals import Refused
from ..wire import Unreadable
from .claims import Claims
from .dealing import KEY, PACKET_BYTES, SEED, opened, own_shares
from .groups import threshold
from .keyring import Keyring
from .presence import TOLD_BYTES, message_present
from .question import fewest, needed, reports_enough
from .streams import digest_of
from .survivors import SurvivorList

log = logging.getLogger("hierfl")


class Opening:
    """What a site does for a sum over survivors.

    Args:
        ring: its secrets, with the signed keys of all.
        claims: where it is kept what was signed and opened.
        cards: of all clients on the roster.
        everyone: names among whom shares were dealt, ascending.
        quorum: the fewest survivors, and the fewest that are to report, of which a sum is opened.
    """

    def __init__(
        self, ring: Keyring, claims: Claims, cards: Mapping[str, PublicCard], everyone: Sequence[str], quorum: int
    ) -> None:
        self.ring, self.claims, self.cards, self.everyone, self.quorum = ring, claims, cards, list(everyone), quorum

    @property
    def _name(self) -> str:
        return self.ring.identity.name

    def _listed(self, masks: Mapping[str, Any]) -> SurvivorList:
        """The list of survivors of a request.

        Raises:
            Unreadable: for one that this site does not sign, whatever it has answered.
            Refused: for one of another question than it has answered, or of too few.
        """
        survived, table = SurvivorList.read(masks.get("list")), self.ring.table
        assert table is not None  # as of the caller
        if survived.table != table.digest:
            raise Unreadable("its list of survivors is of other keys")
        if not set(survived.members) <= set(self.everyone) & table.keys.keys() or self._name not in survived.members:
            raise Unreadable("its list of survivors names others")
        least = max(threshold(len(self.everyone)), fewest(len(self.everyone), self.quorum))
        answered = self.ring.slot(survived.slot).question
        if not answered and self._name in survived.survivors:
            raise Refused("its list names this site, which has not answered", "answered")
        entries = survived.as_json()
        if any(answered[name] != entries[name] for name in ("context", "broadcast", "own", "members") if answered):
            raise Refused("its list is of another question than this site has answered", "answered")
        if len(survived.survivors) < least or not reports_enough(
            answered.get("reporting", []), survived.survivors, self._needed(answered)
        ):
            raise Refused("its list names too few survivors", "policy")
        return survived

    def _needed(self, answered: Mapping[str, Any]) -> int:
        """How many messages the sum of a question has at least."""
        return needed(answered.get("kind", ""), len(self.everyone), self.quorum)

    def too_few(self, masks: Mapping[str, Any]) -> int | None:
        """How many messages a sum would have, where these are too few; None where they are enough.

        Args:
            masks: with the list, and ``told``: packets of the survivors but this site, in order of their names.

        Raises:
            Unreadable, Refused: as :meth:`sign`.
        """
        survived = self._listed(masks)
        present = self._reporting_survivors(survived, masks)
        answered = self.ring.slot(survived.slot).question
        if not answered or not answered["reporting"]:  # it knows of no message, or no one is to send one
            return None
        present |= {self._name} if answered["there"] and self._name in survived.survivors else set()
        messages = len(present & set(answered["reporting"]))
        return None if messages >= self._needed(answered) else messages

    def _reporting_survivors(self, survived: SurvivorList, masks: Mapping[str, Any]) -> set[str]:
        """Which of the other survivors have said that their message is there.

        Raises:
            Refused: where one of them has said nothing of this question. It may answer another one yet, with the mask
                of its own of which this list would give shares.
        """
        others = [name for name in survived.survivors if name != self._name]
        packets = _packets(masks.get("told"), len(others), TOLD_BYTES)
        answers = {
            name: message_present(self.ring, survived.context, name, packet)
            for name, packet in zip(others, packets, strict=True)
        }  # fmt: skip
        if silent := [name for name, present in answers.items() if present is None]:
            raise Refused(f"its list names {', '.join(silent)}: not known to have answered", "answered")
        return {name for name, present in answers.items() if present}

    def _agree(self, survived: SurvivorList) -> None:
        """This list, and no other one of this question, ever."""
        self.claims.claim(f"list {digest_of('list', survived.table, survived.slot)}", survived.digest)
        self.ring.note(survived.slot, signed=survived.digest)

    def sign(self, masks: Mapping[str, Any]) -> bytes:
        """A signature of the list of survivors, 64 bytes.

        Args:
            masks: as of :meth:`too_few`.

        Raises:
            Unreadable: for a list that cannot be.
            Refused: for another list than this site has signed, of another question than it has answered, or with a
                survivor that has not answered.
        """
        survived = self._listed(masks)
        self._reporting_survivors(survived, masks)
        self._agree(survived)
        return survived.signature(self.ring.identity)

    def open(self, masks: Mapping[str, Any]) -> dict[str, bytes]:
        """Shares: of a survivor's own mask, and of the pairwise masks of a member that is none.

        Args:
            masks: with the list, its signatures, and packets of the other members in order of their names.

        Returns:
            {name: 66 bytes}, by name; without those whose packet is not theirs to this site.

        Raises:
            Unreadable: for a list that two thirds have not signed.
            Refused: where the same broadcast was summed over others; or as :meth:`sign`, but for survivors that have
                not answered: of those who have signed at least one site has seen that all did.
        """
        survived = self._listed(masks)
        signers = survived.signers(masks.get("signatures"), {name: self.cards[name] for name in survived.members})
        if len(signers) < threshold(len(self.everyone)):
            raise Unreadable(f"its list of survivors is signed by {counted(len(signers), 'site')}: too few")
        others = [other for other in survived.members if other != self._name]
        packets = _packets(masks.get("packets"), len(others), PACKET_BYTES)
        self._agree(survived)
        self.claims.claim(f"sum {survived.broadcast}", survived.opens)
        which = {other: SEED if other in survived.survivors else KEY for other in survived.members}
        own = own_shares(self.ring, survived.slot, self.everyone, threshold(len(self.everyone)))
        given = {self._name: own[self.everyone.index(self._name)][which[self._name]]}
        for other, packet in zip(others, packets, strict=True):
            given[other] = opened(self.ring, packet, other, survived.slot, which[other])
        if lost := sum(not data for data in given.values()):
            log.warning("not given are %s of shares by others than who should have sent them", counted(lost, "packet"))
        return {other: data for other, data in sorted(given.items()) if data}


def _packets(text: object, count: int, size: int) -> list[bytes]:
    """So many packets of some bytes, as they are carried."""
    try:
        data = base64.b64decode(text if isinstance(text, str) else "", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != count * size:
        raise Unreadable("its packets are none")
    return [data[at : at + size] for at in range(0, len(data), size)]
