"""Masked questions: what their header says of masks, and what names them so that masks cancel.

The entry ``masks`` of a masked question's header:

- ``epoch``: number of the keys; ``table``: digest of the signed keys; ``keys``: these themselves, where a site lacks
  them;
- ``mode``: "whole" or "shares"; with shares ``slot``, of the keys, and ``members``, the names whose masks cancel;
- ``group``: number of the client's group, where the sum is one of a group;
- ``basis`` and ``past``: what sites were sent before; see :mod:`.past`;
- ``own``: what the header says to each client alone: {name: entries}, or {"": entries} where all are equal. That is
  ``counted`` alone: who adds, who trains and what is asked is said to all alike.

A header has the entries of its kind and no others. What a site does not know could say one thing to masks, and another
one to what is behind them.

A site whose keys are not of this epoch and table answers ``{"rekey": number of its epoch}``, which is no answer to the
question: the server begins a later epoch, and asks again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..wire import Unreadable, decode, encode
from .groups import FEWEST, threshold
from .parts import MASKED, Mode
from .streams import canonical, digest_of
from .survivors import SurvivorList, is_digest, is_number, sorted_names

#: entries of a header that say which sum is asked of a broadcast, by kind: with other ones it is the same sum
_WHICH: dict[str, tuple[str, ...]] = {
    "prepare": ("step",), "round": (), "scores": ("split",), "sums": (), "calibration": ("question",),
}  # fmt: skip
#: entries of a header that say who is to add something, and who is to compute, by name
WHO = ("adding", "training")
#: entries of every header, and those of a kind; a question that has others is none
_EVERY = {"kind", "round", "counted", "handshake", "restart", "client", "masks"}
_ENTRIES: dict[str, set[str]] = {
    "prepare": {"step"}, "round": {"adding", "training"}, "scores": {"final", "split", "draws", "adding"},
    "sums": {"final", "summary", "new"}, "calibration": {"final", "question", "adding"},
}  # fmt: skip
#: the entries of a header that may differ between clients
_PER_CLIENT_ENTRIES = {"counted"}


@dataclass(frozen=True)
class Question:
    """What a masked question is.

    Attributes:
        epoch: number of its keys.
        table: digest of the signed keys.
        mode: how its sum opens.
        slot: of keys, with shares; else 0.
        group: number of the group, or None for a sum of all.
        members: whose masks cancel, ascending.
        reporting: those of them that are to add something, and to compute it.
        context: digest of all that is common to it.
        broadcast: digest of the broadcast values, and of which sum is asked of them.
        own: digest of what is said to single clients, and of who is to add and to train.
        kind: of the request.
    """

    epoch: int
    table: str
    mode: Mode
    slot: int
    group: int | None
    members: tuple[str, ...]
    reporting: tuple[str, ...]
    context: str
    broadcast: str
    own: str
    kind: str = "round"

    @classmethod
    def read(
        cls, head: Mapping[str, Any], tensors: Mapping[str, Tensor], client: str, everyone: Sequence[str], roster: str
    ) -> Question:  # fmt: skip
        """A question to one client.

        Args:
            head: of the request.
            tensors: that go with it.
            client: who is asked.
            everyone: names of the whole sum: the roster, or the client's group where ``masks`` names one; ascending.
            roster: digest of the roster.

        Raises:
            Unreadable: for what is none.
        """
        masks = head.get("masks")
        if head.get("kind") not in MASKED or not isinstance(masks, Mapping):
            raise Unreadable("it says nothing of masks")
        _check_entries(head)
        mode, shares = masks.get("mode"), masks.get("mode") == "shares"
        group, slot = masks.get("group"), masks.get("slot") if shares else 0
        if (
            (mode != "whole" and mode != "shares")
            or not is_number(masks.get("epoch"), 1)
            or not is_digest(masks.get("table"))
        ):
            raise Unreadable("its masks are none")
        if not is_number(slot) or not (group is None or is_number(group)) or (not shares and "members" in masks):
            raise Unreadable("its masks are none")
        members = sorted_names(masks.get("members")) if shares else tuple(everyone)
        if not set(members) <= set(everyone) or client not in members:
            raise Unreadable("its members are not of the roster")
        own = own_of(masks.get("own"), members)
        for name, value in own[client].items():
            if canonical(head.get(name)) != canonical(value):
                raise Unreadable("its header is another one than all were told")
        adding, training = (head.get(entry) for entry in WHO)
        for names in (adding, training):
            if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
                raise Unreadable("its list of who adds, or trains, is none")
        common = {name: value for name, value in head.items() if name not in ("masks", "client", *own[client])}
        entries = {name: value for name, value in masks.items() if name not in ("keys", "own")}
        values = tensors_digest(tensors)
        return cls(
            masks["epoch"], masks["table"], mode, slot, group, members,
            tuple(
                name for name in members
                if all(names is None or name in names for names in (adding, training))
            ),
            digest_of("question", roster, common, entries, own, list(members), values),
            digest_of("broadcast", roster, head["kind"], [head.get(name) for name in _WHICH[head["kind"]]], values),
            digest_of("own", _without_rounds(own), adding, training), str(head["kind"]),
        )  # fmt: skip

    def answered(self) -> dict[str, Any]:
        """What a site keeps of it, to compare a list of survivors with."""
        return {
            "context": self.context, "broadcast": self.broadcast, "own": self.own, "members": list(self.members),
            "reporting": list(self.reporting), "kind": self.kind,
        }  # fmt: skip

    def survived(self, survivors: Sequence[str]) -> SurvivorList:
        """The list that opens it over some of its members."""
        return SurvivorList(
            self.table, self.slot, self.context, self.broadcast, self.own, self.members, tuple(sorted(survivors))
        )

    def opens_over(self, survivors: Sequence[str], everyone: int, quorum: int) -> bool:
        """Whether a sum over these hides each of them, and counts.

        Args:
            survivors: some of the members.
            everyone: how many there are on the roster, or in the group.
            quorum: the fewest that count.
        """
        enough = everyone if self.mode == "whole" else max(threshold(everyone), fewest(everyone, quorum))
        messages = needed(self.kind, everyone, quorum)
        return len(survivors) >= enough and reports_enough(self.reporting, survivors, messages)


def fewest(everyone: int, quorum: int) -> int:
    """The least number of sites in a sum.

    Args:
        everyone: how many there are on the roster, or in the group.
        quorum: the fewest that count.
    """
    return max(FEWEST, min(quorum, everyone))


def needed(kind: str, everyone: int, quorum: int) -> int:
    """How many messages a sum has at least: in a round as many as count, else as many as hide one.

    Args:
        kind: of the question.
        everyone: how many there are on the roster, or in the group.
        quorum: the fewest messages with which a round counts.
    """
    return fewest(everyone, quorum) if kind == "round" else FEWEST


def reports_enough(reporting: Sequence[str], survivors: Sequence[str], messages: int) -> bool:
    """Whether enough of those who are to report are among survivors; where no one is to, nothing is hidden."""
    return not reporting or len(set(reporting) & set(survivors)) >= messages


def own_of(own: object, members: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What the header says to each member alone.

    Raises:
        Unreadable: where it does not say it for each of them.
    """
    if not isinstance(own, Mapping) or not all(isinstance(entries, Mapping) for entries in own.values()):
        raise Unreadable("it does not say what each site is asked")
    if not all(entries.keys() <= _PER_CLIENT_ENTRIES for entries in own.values()):
        raise Unreadable("it asks single sites for something else than all")
    if set(own) == {""}:
        return {name: dict(own[""]) for name in members}
    if set(own) != set(members):
        raise Unreadable("it does not say what each site is asked")
    return {name: dict(own[name]) for name in members}


def _without_rounds(own: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The same with ``counted`` as rounds before the latest: of a search that has converged two rounds ask the same."""
    last = max((entries["counted"] for entries in own.values() if is_number(entries.get("counted"))), default=0)
    return {
        name: {**entries, "counted": last - entries["counted"]} if is_number(entries.get("counted")) else dict(entries)
        for name, entries in own.items()
    }  # fmt: skip


def _check_entries(head: Mapping[str, Any]) -> None:
    """Refuses a header with entries that are not of its kind.

    Raises:
        Unreadable: likewise.
    """
    if more := sorted(head.keys() - _EVERY - _ENTRIES[head["kind"]]):
        raise Unreadable(f"its header has {len(more)} entries that no question of this kind has")


def own_entries(own: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Undoes :func:`own_of`, in few bytes where all are equal."""
    texts = {canonical(entries) for entries in own.values()}
    return {"": dict(next(iter(own.values())))} if len(texts) == 1 else {name: dict(own[name]) for name in sorted(own)}


def asked_of(head: Mapping[str, Any]) -> list[object] | None:
    """What names a kind of sum to which the server says who adds, in a whole study; None for others.

    Nearly equal values, asked of other sites, would show what one of them adds.
    """
    if head["kind"] not in ("scores", "calibration"):
        return None
    asked = head.get("question")
    if head["kind"] == "scores":
        return ["scores", head.get("split"), None]
    return ["calibration", None, asked.get("about") if isinstance(asked, Mapping) else None]


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """The digest of names, forms and bytes of tensors of any device, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(canonical([name, str(value.dtype), list(value.shape)]))
        flat = value.detach().cpu().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().tobytes() if len(flat) else b"")
    return digest.hexdigest()


def basis_of(totals: Mapping[str, Tensor]) -> str:
    """Digest of the sums over all sites with which these begin; empty for none."""
    return tensors_digest(totals) if totals else ""


def without_masks(plain: bytes) -> bytes:
    """A question as it would be asked without masks: equal bytes for the same question under other keys.

    A site behind it answers that; what is charged, and what names the question in a ledger, follows from it.

    Raises:
        Unreadable: for what is no request.
    """
    head, tensors = decode(plain)
    return encode({name: value for name, value in head.items() if name != "masks"}, tensors)


def is_masked(head: Mapping[str, Any]) -> bool:
    """Whether a request's header asks for a masked answer."""
    return "masks" in head
