"""What was said once and for all: a second, different thing instead is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Protocol

from hierfl.errors import UserError
from hierfl.files import BINARY, make_folder, sync_folder

from ..refusals import Refused

#: of a site's folder of masks
CLAIMS_FILE = "claims.jsonl"


class Claims(Protocol):
    """A record that survives kills: of masks used, lists signed, sums opened.

    A real site keeps it in the account's ledger, so that a folder that was restored does not forget.
    """

    def claim(self, what: str, value: str) -> None:
        """Notes ``value`` as that of ``what``, on the disk before it returns; a no-op where it is noted already.

        Args:
            what: kind of the claim, a space, and 64 hexadecimal digits of what it is about.
            value: 64 hexadecimal digits.

        Raises:
            Refused: "answered", where another value is noted.
        """
        ...


class FileClaims:
    """Claims in a file of their own, one line of json each.

    Args:
        path: the file; made with the first claim.

    Raises:
        UserError: for a damaged file.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._end = path, 0
        self._held: dict[str, str] = {}
        data = path.read_bytes() if path.is_file() else b""
        whole = data[: data.rfind(b"\n") + 1]  # nothing has followed from half a line of a killed process
        try:
            for line in whole.splitlines():
                what, value = json.loads(line)
                self._held[str(what)] = str(value)
        except ValueError as error:
            raise UserError(f"{path} is damaged: take it from a backup made today, or leave the study") from error
        self._end = len(whole)

    def claim(self, what: str, value: str) -> None:
        """See :class:`Claims`."""
        if (noted := self._held.get(what)) == value:
            return
        if noted is not None:
            raise Refused(f"another answer was given before ({what.partition(' ')[0]})", "answered")
        make_folder(self.path.parent)
        fresh, line = not self.path.exists(), json.dumps([what, value]).encode() + b"\n"
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | BINARY | getattr(os, "O_NOFOLLOW", 0), 0o600)
        with open(handle, "rb+") as file:
            file.truncate(self._end)
            file.seek(self._end)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if fresh:
            sync_folder(self.path.parent)
        self._end += len(line)
        self._held[what] = value
