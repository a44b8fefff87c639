"""What a site keeps on its own disk: one file, which is replaced whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch

from hierfl.errors import UserError
from hierfl.files import make_folder, write_whole

from ...state import State
from .kept_bytes import decode_kept, encode_kept
from .wire import FORMAT, Unreadable, put_under, under

#: of a site's folder
STATE_FILE = "site.safetensors"


@dataclass(frozen=True)
class SiteState:
    """A site's own values, and what it has answered. A server that was killed may ask the last round once more.

    Attributes:
        before: its values as its last round began.
        after: as that round has left them.
        round: that round; 0 before the first.
        request: a digest of the request.
        answer: the bytes that answered it.
        final: the shared values of the last broadcast, and what is known of all clients, once the study has ended.
        ended: whether it has.
    """

    before: State
    after: State
    round: int = 0
    request: str = ""
    answer: bytes = b""
    final: State = field(default_factory=dict)
    ended: bool = False

    def save(self, folder: Path, study: str, client: str) -> None:
        """Writes it, for this study and client."""
        head = {
            "format": FORMAT, "study": study, "client": client, "round": self.round, "request": self.request,
            "ended": self.ended,
        }  # fmt: skip
        answer = torch.frombuffer(bytearray(self.answer), dtype=torch.uint8) if self.answer else torch.empty(0)
        tensors = {
            **put_under("before", self.before), **put_under("after", self.after), **put_under("final", self.final),
            "answer": answer.to(torch.uint8),
        }  # fmt: skip
        make_folder(folder)
        write_whole(folder / STATE_FILE, encode_kept(head, tensors), mode=0o600)

    @classmethod
    def load(cls, folder: Path, study: str, client: str) -> SiteState | None:
        """Reads it; None where there is none.

        Raises:
            UserError: for one of another study or client, or a damaged file.
        """
        path = folder / STATE_FILE
        if not path.is_file():
            return None
        try:
            head, tensors = decode_kept(path.read_bytes())
            state = cls(
                under("before", tensors), under("after", tensors), int(head["round"]), str(head["request"]),
                tensors["answer"].numpy().tobytes(), under("final", tensors), head["ended"] is True,
            )  # fmt: skip
        except (Unreadable, KeyError, ValueError) as error:
            raise UserError(f"{path} is damaged: {error}") from error
        if (head.get("study"), head.get("client")) != (study, client):
            raise UserError(f"{path} belongs to another study or client; a study needs a folder of its own")
        return state
