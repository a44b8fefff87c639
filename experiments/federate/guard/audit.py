"""A site's audit file: a line for every request and its reply, each of which holds the digest of the one before."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hierfl.errors import UserError
from hierfl.files import shown

from ..contributions import now
from .lines import Lines, canonical, waiting_lock

#: of a site's home
AUDIT = "audit.jsonl"
#: what stands before the first line
BEGINNING = "0" * 64
#: what a line of the audit file says of a restored home
ACCEPTED = "accepted"


class Audit:
    """The audit file of one home. Studies of one home share it, and take turns.

    Args:
        home: the site's own folder.

    Attributes:
        spent: heads of the ledger's files, each as the last line that names it has it; see :mod:`.heads`.

    Raises:
        UserError: for a file with a gap, or a line that was edited.
    """

    def __init__(self, home: Path) -> None:
        self.path = home / AUDIT
        self._lines = Lines(self.path)
        self._lock = home / ".audit.lock"
        self._hashes: list[str] = []
        self.spent: Mapping[str, tuple[int, str]] = {}
        self.catch_up()

    def catch_up(self) -> None:
        """Reads and verifies what other processes have added.

        Raises:
            UserError: for a file that is not what it was.
        """
        self._verified(self._lines.catch_up())

    def _verified(self, lines: Iterable[Mapping[str, Any]]) -> None:
        for line in lines:
            number, entries = len(self._hashes) + 1, {name: value for name, value in line.items() if name != "hash"}
            if entries.get("line") != number or entries.get("before") != self.head[1]:
                raise UserError(f"{shown(self.path)} has a gap before line {number}: lines were taken out, or moved")
            if line.get("hash") != _digest(entries):
                raise UserError(f"{shown(self.path)}: line {number} was edited")
            self._hashes.append(str(line["hash"]))
            if "spent" in line:  # lines of earlier versions have none
                now = {name: (int(count), str(digest)) for name, (count, digest) in line["spent"].items()}
                self.spent = {**self.spent, **now}

    @property
    def lines(self) -> list[dict[str, Any]]:
        """All lines, in their order, read and verified again: a site that answers for years does not keep them.

        Raises:
            UserError: for a file that is not what it was.
        """
        self._lines, self._hashes = Lines(self.path), []
        lines = self._lines.catch_up()
        self._verified(lines)
        return lines

    @property
    def head(self) -> tuple[int, str]:
        """How many lines there are, and the digest of the last."""
        return len(self._hashes), self._hashes[-1] if self._hashes else BEGINNING

    def has(self, digest: str) -> bool:
        """Whether the file has ended with this digest at any time."""
        return digest in (BEGINNING, *self._hashes)

    def append(self, entries: Mapping[str, Any]) -> tuple[int, str]:
        """Adds a line; it is on the disk when this returns.

        Args:
            entries: what json can say: names that are not ``line``, ``when``, ``salt``, ``before`` and ``hash``.

        Returns:
            The new :attr:`head`.
        """
        with waiting_lock(self._lock):
            self.catch_up()
            # Replies say the digest: without a salt anyone who guesses a line's words could compare them.
            salt = secrets.token_hex(16)
            numbered = {"line": len(self._hashes) + 1, "when": now(), **entries, "salt": salt, "before": self.head[1]}
            self._hashes.append(str(self._lines.append({**numbered, "hash": _digest(numbered)})["hash"]))
            return self.head

    def check(self, last_head: tuple[int, str] | None) -> None:
        """Refuses a file that lacks what was seen of it.

        Args:
            last_head: an earlier :attr:`head`; None for none.

        Raises:
            UserError: for one that was cut, or belongs to a copy of the home that was made earlier.
        """
        if last_head is None or not last_head[0]:
            return
        count, head = last_head
        if len(self._hashes) < count:
            raise UserError(
                f"{shown(self.path)} has {len(self._hashes)} lines, and this account has seen {count}: it was "
                "cut, or its folder is an older copy. Work in the folder that has all of them, or put the loss on "
                f"record: hierfl federate audit {shown(self.path.parent)} --accept NAME"
            )
        if self._hashes[count - 1] != head:
            raise UserError(
                f"{shown(self.path)}: line {count} is not the one that this account has seen: the file was written "
                "again, or two copies of its folder were used"
            )


def _digest(entries: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(entries).encode()).hexdigest()
