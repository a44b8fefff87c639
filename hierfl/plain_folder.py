"""Folders that others may write to: no link in them is followed, and only plain files are read or replaced.

Where the system has handles of folders (POSIX), a folder stays the one that was looked at. Where it has none (Windows),
each part of a path is looked at before it is used: who can exchange a folder for a link in between, could win the race.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import UserError
from .files import BINARY, PART_SUFFIX, shown

#: whether a file can be named by a handle of its folder
HANDLES = hasattr(os, "O_DIRECTORY") and {os.open, os.mkdir, os.stat, os.unlink} <= os.supports_dir_fd


class Linked(UserError):
    """A symbolic link where a folder or a plain file belongs."""


class PlainFolder:
    """A folder below a root that a user has named; the root itself may be a link.

    Every call opens it again, so that a mount that comes back is found.

    Args:
        root: as the user has named it.
        parts: names of the folders from there.
    """

    def __init__(self, root: Path, *parts: str) -> None:
        self.root, self.parts = root, parts
        self.path = root.joinpath(*parts)

    @contextmanager
    def opened(self, *, make: bool = False) -> Iterator[int | Path]:
        """A handle of the folder, or its path where the system has no handles.

        Args:
            make: whether folders below the root are made where they lack, for this user alone.

        Raises:
            Linked: where a folder below the root is a link, or a file.
            OSError: where it is not there, or cannot be opened.
        """
        if not HANDLES:
            yield self._looked_at(make)
            return
        handle, path = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY), self.root
        try:
            for part in self.parts:
                path = path / part
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=handle)
                below = self._below(handle, part, path)
                os.close(handle)
                handle = below
            yield handle
        finally:
            os.close(handle)

    def _looked_at(self, make: bool) -> Path:
        """The path, no part of which below the root is a link."""
        path = self.root
        os.listdir(path)  # says why a root cannot be opened
        for part in self.parts:
            path = path / part
            if make:
                with suppress(FileExistsError):
                    os.mkdir(path, 0o700)
            if not stat.S_ISDIR(os.lstat(path).st_mode) or _leads_elsewhere(path):
                raise Linked(f"{shown(path)} is a link or a file, and no folder: it is not followed")
        return path

    @staticmethod
    def _below(handle: int, part: str, path: Path) -> int:
        try:
            return os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=handle)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise Linked(f"{shown(path)} is a link or a file, and no folder: it is not followed") from error
            error.filename = str(path)
            raise

    def make(self) -> None:
        """Makes it, below the root, where it is not there."""
        with self.opened(make=True):
            pass

    def names(self) -> list[str]:
        """All that is in it, in order; nothing where the root is there and the folder is not."""
        try:
            with self.opened() as handle:
                return sorted(os.listdir(handle))
        except FileNotFoundError:
            if not self.root.is_dir():
                raise
            return []

    def entry_status(self, name: str) -> os.stat_result | None:
        """The status of one entry, which is not followed; None where there is none."""
        try:
            with self.opened() as handle:
                path, at = _named(handle, name)
                return os.stat(path, follow_symlinks=False, **at)
        except FileNotFoundError:
            return None

    def read(self, name: str, most: int) -> bytes:
        """A plain file's bytes; nothing of one that is not there, no plain file, or larger than ``most`` bytes.

        Raises:
            Linked: for a link.
        """
        try:
            with self.opened() as handle:
                return read_plain(Path(name), most, folder=handle, shown_as=self.path / name)
        except FileNotFoundError:
            return b""

    def write(self, name: str, data: bytes) -> None:
        """Replaces a file whole or not at all, as :func:`.files.write_whole` does. A link of that name is replaced.

        The file is for this user alone; in a folder whose group may write to it, for that group, too.
        """
        part = f".{name}{PART_SUFFIX}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY | getattr(os, "O_NOFOLLOW", 0)
        with self.opened(make=True) as handle:
            path, at = _named(handle, part)
            try:
                with suppress(FileNotFoundError):
                    os.unlink(path, **at)
                with open(os.open(path, flags, 0o600, **at), "wb") as file:
                    if isinstance(handle, int) and os.fstat(handle).st_mode & stat.S_IWGRP:
                        os.fchmod(file.fileno(), 0o660)
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                if isinstance(handle, int):
                    os.replace(part, name, src_dir_fd=handle, dst_dir_fd=handle)
                    os.fsync(handle)
                else:
                    os.replace(path, handle / name)
            except OSError as error:
                with suppress(OSError):
                    os.unlink(path, **at)
                error.filename = str(self.path / name)
                raise

    def remove(self, name: str) -> None:
        """Takes an entry away that is no folder; nothing where it is gone."""
        with suppress(FileNotFoundError, IsADirectoryError), self.opened() as handle:
            path, at = _named(handle, name)
            os.unlink(path, **at)


def _named(folder: int | Path, name: str) -> tuple[str | Path, dict[str, int]]:
    """How calls of the system name an entry of a folder."""
    return (name, {"dir_fd": folder}) if isinstance(folder, int) else (folder / name, {})


def _leads_elsewhere(path: Path) -> bool:
    """Whether a path is a link, or one of Windows' junctions."""
    return path.is_symlink() or bool(getattr(os.path, "isjunction", lambda _: False)(path))


def read_plain(path: Path, most: int, *, folder: int | Path | None = None, shown_as: Path | None = None) -> bytes:
    """A plain file's bytes; nothing of one that is not there, no plain file, or larger than ``most`` bytes.

    Args:
        path: of the file.
        most: how many bytes it may have.
        folder: a handle of the folder that ``path`` is in, or its path.
        shown_as: the path for messages.

    Raises:
        Linked: for a link, which is not followed.
    """
    name, at = (path, {}) if folder is None else _named(folder, str(path))
    try:
        handle = _opened_plain(name, at)
    except FileNotFoundError:
        return b""
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Linked(f"{shown(shown_as or path)} is a symbolic link: it is not followed") from error
        if error.errno == errno.ENXIO:  # a socket
            return b""
        error.filename = str(shown_as or path)
        raise
    if handle is None:
        return b""
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_size > most:
        os.close(handle)
        return b""
    with open(handle, "rb") as file:
        return file.read(most)


def _opened_plain(name: str | Path, at: Mapping[str, int]) -> int | None:
    """A handle of what is no link; None of what cannot be a plain file.

    Raises:
        OSError: ELOOP for a link.
    """
    if hasattr(os, "O_NOFOLLOW"):
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, **at)
    if _leads_elsewhere(Path(name)):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(name))
    return os.open(name, os.O_RDONLY | BINARY) if stat.S_ISREG(os.lstat(name).st_mode) else None
