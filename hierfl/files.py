"""Files of ours: written whole or not at all, at the paths that users say.

A file is written under another name beside its own, brought to the disk, and renamed; then its folder is brought to the
disk, too. So a reader, a kill or a power failure sees the old file or the new one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import UserError

#: what begins and ends the name of a file that is being written: ``.NAME.part``
PART_SUFFIX = ".part"
#: what Windows needs to leave the ends of lines as they are
BINARY = getattr(os, "O_BINARY", 0)


def shown(name: object) -> str:
    """A file's name as it can be printed in one line: what is not printable is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(name))


def shown_lines(text: object) -> str:
    """Text of several lines as it can be printed: what is neither printable nor a line's end is escaped."""
    return "\n".join(shown(line) for line in str(text).split("\n"))


def user_path(text: str | Path) -> Path:
    """A path as a user says it, ``~`` expanded.

    Raises:
        UserError: for a name that is empty, no valid text, or has no home directory to expand to.
    """
    if not str(text):
        raise UserError("an empty name is no path")
    try:
        if b"\0" in str(text).encode("utf-8"):
            raise UserError(f"the name {shown(text)} holds a null character")
        return Path(text).expanduser()
    except UnicodeEncodeError as error:
        raise UserError(f"the name {shown(text)} is not valid UTF-8: rename it") from error
    except RuntimeError as error:
        raise UserError(f"{shown(text)} cannot be used: {shown(error)}") from error


def part_of(path: Path) -> Path:
    """The name under which a file is written before it is renamed."""
    return path.with_name(f".{path.name}{PART_SUFFIX}")


@contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[Path]:
    """Gives a name to write to; what is there at the end replaces ``path`` whole. After an error nothing has changed.

    Args:
        path: the file.
        mode: its permissions; None for what the process gives new files.
    """
    part = part_of(path)
    part.unlink(missing_ok=True)  # a killed process's, or somebody's link to another file
    try:
        yield part
        with open(part, "rb+") as file:
            if mode is not None and hasattr(os, "fchmod"):  # Windows has no permissions of this kind
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(error, OSError) and error.errno and not error.filename:  # a full disk does not say whose
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    sync_folder(path.parent)


def write_whole(path: Path, data: bytes, mode: int | None = None) -> None:
    """Replaces a file by ``data``, whole or not at all; see :func:`replacing`.

    A file with permissions of its own has them before there is anything in it.
    """
    with replacing(path) as part:
        permissions = 0o666 if mode is None else mode
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, permissions), "wb") as file:
            file.write(data)


def make_folder(path: Path) -> None:
    """A folder, and those above it, where it is not there.

    Raises:
        UserError: where there is a file of that name.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(f"{error.filename or path} is no folder") from error


def check_writable(path: Path) -> None:
    """Finds out whether a file can be written, before anything is run for it; its folder is made.

    Raises:
        UserError: for a folder.
        OSError: where nothing can be written.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder, and a file is to be written")
    make_folder(path.parent)
    part = part_of(path)
    part.unlink(missing_ok=True)
    part.touch(exist_ok=False)
    part.unlink()


def sync_folder(folder: Path) -> None:
    """Brings a folder's entries to the disk: without it a power failure may undo a rename.

    Windows opens no folder, and brings a rename to the disk by itself.
    """
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_leftover(path: Path) -> bool:
    """Whether a file is one that a killed process leaves: a lock, or one that was being written."""
    return path.name == ".lock" or (path.name.startswith(".") and PART_SUFFIX in path.name)
