"""Files that come from elsewhere: only regular ones are opened, and a bad one is reported in one line.

Every reader of data goes through this room. Nothing in such a file is executed. What a file says of its size is checked
before memory is taken for it: all of it together may be no larger than :func:`~hierfl.data.readers.limits.byte_limit`.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from ...errors import UserError
from ...files import shown, user_path


def located(path: Path | str) -> Path:
    """The absolute path, links followed and ``~`` expanded. It need not exist.

    Raises:
        UserError: for a name that is empty, no valid text, has no home directory to expand to, or leads in a circle.
    """
    try:
        resolved = user_path(path).resolve()
        if resolved.is_symlink():  # from Python 3.13 on, resolve stops at a circle and says nothing
            raise UserError(f"{shown(path)} cannot be used: its symbolic links lead in a circle")
    except RuntimeError as error:  # a circle of links
        raise UserError(f"{shown(path)} cannot be used: {shown(error)}") from error
    except OSError as error:
        raise UserError(f"{shown(path)} cannot be used: {error.strerror or error}") from error
    return resolved


_KINDS = {
    stat.S_IFDIR: "a directory", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip


def regular_file(path: Path | str, what: str = "") -> Path:
    """The absolute path of a regular file, ``~`` expanded; nothing else is ever opened, so that nothing can hang.

    Args:
        path: as the user gave it.
        what: what it should be, in words, for the message where it is missing.

    Raises:
        UserError: where it is missing, no regular file (a directory, a named pipe, a device, ...), or has a name that
            cannot be used (see :func:`located`).
    """
    resolved = located(path)
    try:
        kind = stat.S_IFMT(resolved.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"no file {shown(path)}" + (f"; it should be {what}" if what else "")) from error
    except OSError as error:
        raise UserError(f"{shown(path)} cannot be read: {error.strerror or error}") from error
    if kind != stat.S_IFREG:
        raise UserError(f"{shown(path)} is {_KINDS.get(kind, 'something else')}, not a regular file")
    return resolved


def open_regular(path: Path | str, what: str = "") -> BinaryIO:
    """A regular file opened for reading; see :func:`regular_file`.

    Raises:
        UserError: as there, or where it may not be read.
    """
    file = regular_file(path, what)
    # Should a pipe have taken the file's name since it was looked at, opening it must not wait.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        stream = os.fdopen(os.open(file, flags), "rb")
    except OSError as error:
        raise UserError(f"{shown(path)} cannot be read: {error.strerror or error}") from error
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise UserError(f"{shown(path)} is not a regular file")
    return stream
