"""Replies that a site has given: the same question is answered by the same bytes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from hierfl.files import make_folder, write_whole

#: of a study's folder at a site
ANSWERS = "answers"


@dataclass(frozen=True)
class Slot:
    """What can be asked once.

    Attributes:
        kind: of the request.
        round: of the study.
        what: what else names it: a step, a split, a question.
    """

    kind: str
    round: int
    what: str = ""

    @property
    def text(self) -> str:
        """The slot as one line."""
        return f"{self.kind} {self.round} {self.what}".rstrip()

    @property
    def stem(self) -> str:
        """The beginning of the names of its files."""
        return f"{self.round:06d}-{self.kind}-{hashlib.sha256(self.text.encode()).hexdigest()[:12]}"


class Answers:
    """Sealed replies of one study, as files.

    Args:
        folder: the study's at its site.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / ANSWERS

    def _path(self, slot: Slot, question: str) -> Path:
        return self.folder / f"{slot.stem}-{question[:32]}.reply"

    def stored(self, slot: Slot, question: str) -> bytes | None:
        """What was answered to a question; None where nothing was, or its round is over."""
        path = self._path(slot, question)
        return path.read_bytes() if path.is_file() else None

    def store(self, slot: Slot, question: str, reply: bytes) -> None:
        """Keeps a reply; it is on the disk when this returns."""
        make_folder(self.folder)
        write_whole(self._path(slot, question), reply, mode=0o600)

    def forget(self, before: int) -> None:
        """Deletes replies of rounds before this one: no one may ask for them any more."""
        if self.folder.is_dir():
            for path in self.folder.glob("*.reply"):
                if path.name[:6].isdigit() and int(path.name[:6]) < before:
                    path.unlink(missing_ok=True)
