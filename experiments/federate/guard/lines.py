"""Append-only files of json lines: each line is on the disk before anything follows from it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from hierfl.errors import UserError
from hierfl.files import BINARY, make_folder, shown, sync_folder

#: seconds that a process waits for another one's line
PATIENCE = 60.0


def canonical(value: object) -> str:
    """Json that is the same for the same value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


@contextmanager
def waiting_lock(path: Path) -> Iterator[None]:
    """Holds a lock file, for which other processes are awaited.

    Raises:
        UserError: for a link, or where another process keeps it.
    """
    if path.is_symlink():  # older versions of filelock empty what it leads to
        raise UserError(f"{shown(path)} is a symbolic link, and no lock of ours")
    lock = FileLock(str(path), timeout=PATIENCE)
    try:
        lock.acquire()
    except Timeout as error:
        raise UserError(f"another process has kept {shown(path)} for {PATIENCE:.0f} seconds: end it") from error
    try:
        yield
    finally:
        lock.release()


class Lines:
    """One such file, of which this process has read the beginning.

    A line that a killed process has half written was never acted upon: the next line overwrites it.

    Args:
        path: of the file; made with the first line.

    Attributes:
        count: how many lines were read so far.
        last: the last of them, as bytes without the line's end.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._end, self.count, self.last = path, 0, 0, b""

    @property
    def head(self) -> tuple[int, str]:
        """How many lines were read so far, and the digest of the last."""
        return self.count, hashlib.sha256(self.last).hexdigest()

    def check(self, head: tuple[int, str]) -> None:
        """Refuses a file that lacks what was seen of it; the file is read from its beginning.

        Args:
            head: an earlier :attr:`head`.

        Raises:
            UserError: for a file that was cut or written again.
        """
        lines = self.path.read_bytes().split(b"\n")[:-1] if self.path.is_file() else []
        count, digest = head
        if len(lines) < count:
            raise UserError(f"{shown(self.path)} has {len(lines)} lines, and it had {count}: it was cut or deleted")
        if count and hashlib.sha256(lines[count - 1]).hexdigest() != digest:
            raise UserError(f"{shown(self.path)}: line {count} is another than it was: the file was written again")

    def catch_up(self) -> list[dict[str, Any]]:
        """Reads what has come since; the new lines.

        Raises:
            UserError: for a line that is none, or a file that has become shorter.
        """
        if self.path.is_symlink():
            raise UserError(f"{shown(self.path)} is a symbolic link, and no file of ours")
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < self._end:
            raise UserError(f"{shown(self.path)} has become shorter while it was in use: lines are missing")
        if size == self._end:
            return []
        with open(self.path, "rb") as file:
            file.seek(self._end)
            data = file.read()
        whole, new = data[: data.rfind(b"\n") + 1], []
        for number, line in enumerate(whole.splitlines(), self.count + 1):
            try:
                new.append(json.loads(line))
                if not isinstance(new[-1], dict):
                    raise ValueError
            except ValueError as error:
                raise UserError(f"{shown(self.path)} is damaged: line {number} is none of ours") from error
        self._end += len(whole)
        self.count += len(new)
        self.last = whole.splitlines()[-1] if new else self.last
        return new

    def append(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Adds a line, and brings it to the disk; the caller has caught up, and holds the lock.

        Returns:
            The line as it will be read.
        """
        data, fresh = canonical(line).encode() + b"\n", not self.path.exists()
        make_folder(self.path.parent)
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | BINARY | getattr(os, "O_NOFOLLOW", 0), 0o600)
        with open(handle, "rb+") as file:
            file.truncate(self._end)  # half a line of a killed process
            file.seek(self._end)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if fresh:
            sync_folder(self.path.parent)
        self._end += len(data)
        self.count += 1
        self.last = data[:-1]
        written: dict[str, Any] = json.loads(data)
        return written
