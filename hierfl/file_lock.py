"""A lock file: one process at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from .errors import UserError
from .files import shown


class Busy(UserError):
    """Another process is at it."""


@contextmanager
def locked(path: Path, words: str) -> Iterator[None]:
    """Holds a lock file for this process; it stays there, since a lock that is deleted excludes no process.

    Raises:
        Busy: with these words, if another one has it.
        UserError: for a link.
    """
    if path.is_symlink():  # older versions of filelock empty what it leads to
        raise UserError(f"{shown(path)} is a symbolic link, and no lock of ours")
    lock = FileLock(str(path), timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise Busy(words) from error
    try:
        yield
    finally:
        lock.release()


def is_locked(path: Path) -> bool:
    """Whether another process has a lock file now; of a file that cannot be tried, False."""
    if not path.is_file():
        return False
    try:
        with locked(path, "held"):
            return False
    except Busy:
        return True
    except (OSError, NotImplementedError, UserError):
        return False
