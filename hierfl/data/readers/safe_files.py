"""Files that come from elsewhere: only regular ones are opened, and a bad one is told in one line.

Every reader of data goes through this module; those of whole arrays are in :mod:`hierfl.data.readers.mat`. Nothing in such a
file is executed. What a file says of its size is checked before memory is taken for it: all of it together may be no
larger than :func:`byte_limit`.
"""

from __future__ import annotations

import bz2
import os
import stat
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

import numpy as np

from ...errors import UserError
from ...files import shown, user_path

if TYPE_CHECKING:
    import pandas as pd

GIB = 2**30
#: the environment variable that says how many GiB the data of one file may have, and what holds without it
LIMIT, DEFAULT_GIB = "HIERFL_MAX_GIB", 16.0
#: what readers of formats raise for damaged input, our own and other people's
DAMAGED = (
    ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, MemoryError, OSError, RuntimeError,
    SyntaxError, TypeError, ValueError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def located(path: Path | str) -> Path:
    """The absolute path, links followed and ``~`` expanded. It need not exist.

    Raises:
        UserError: for a name that is empty, no valid text, has no home directory to expand to, or leads in a circle.
    """
    try:
        found = user_path(path).resolve()
        if found.is_symlink():  # (from Python 3.13 on, resolve stops at a circle and says nothing)
            raise UserError(f"{shown(path)} cannot be used: its symbolic links lead in a circle")
    except RuntimeError as error:  # a circle of links
        raise UserError(f"{shown(path)} cannot be used: {shown(error)}") from error
    except OSError as error:
        raise UserError(f"{shown(path)} cannot be used: {error.strerror or error}") from error
    return found


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
    found = located(path)
    try:
        kind = stat.S_IFMT(found.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"no file {shown(path)}" + (f"; it should be {what}" if what else "")) from error
    except OSError as error:
        raise UserError(f"{shown(path)} cannot be read: {error.strerror or error}") from error
    if kind != stat.S_IFREG:
        raise UserError(f"{shown(path)} is {_KINDS.get(kind, 'something else')}, not a regular file")
    return found


def open_regular(path: Path | str, what: str = "") -> BinaryIO:
    """A regular file opened for reading; see :func:`regular_file`.

    Raises:
        UserError: as there, or where it may not be read.
    """
    found = regular_file(path, what)
    # (should a pipe have taken the file's name since it was looked at, opening it must not wait)
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        stream = os.fdopen(os.open(found, flags), "rb")
    except OSError as error:
        raise UserError(f"{shown(path)} cannot be read: {error.strerror or error}") from error
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise UserError(f"{shown(path)} is not a regular file")
    return stream


# -- sizes -------------------------------------------------------------------------------------------------------------


def byte_limit() -> int:
    """How many bytes the data of one file may have: ``HIERFL_MAX_GIB``, or 16 GiB, or half of a smaller memory.

    Raises:
        UserError: where the environment variable is no positive number.
    """
    said = os.environ.get(LIMIT, "").strip()
    if said:
        try:
            limit = float(said)
        except ValueError:
            limit = float("nan")
        if not 0 < limit < 2**33:
            raise UserError(f"{LIMIT} is a number of GiB, as in {LIMIT}=32; not {shown(said)!r}")
        return int(limit * GIB)
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not everywhere
        return int(DEFAULT_GIB * GIB)
    return min(int(DEFAULT_GIB * GIB), memory // 2)


def check_size(path: Path | str, size: int, what: str = "it") -> None:
    """Refuses a declared size beyond :func:`byte_limit`.

    Raises:
        UserError: with the size and how to raise the limit.
    """
    limit = byte_limit()
    if size > limit:
        raise UserError(
            f"{shown(path)}: {what} has {size / GIB:,.1f} GiB, more than the {limit / GIB:,.1f} that are read; "
            f"if that is right, set {LIMIT}={-(-size // GIB)}"
        )


@contextmanager
def reading(path: Path | str, what: str) -> Iterator[None]:
    """Turns what a reader raises for damaged input into one line, and keeps its warnings from the screen.

    Raises:
        UserError: for every error of :data:`DAMAGED`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except UserError:
        raise
    except MemoryError as error:
        raise UserError(f"{shown(path)} is damaged, or needs more memory than there is") from error
    except DAMAGED as error:
        damaged(path, what, error)


def damaged(path: Path | str, what: str, error: BaseException) -> NoReturn:
    """Raises the error for a file that is damaged."""
    detail = shown(" ".join(str(error).split()))[:200] or type(error).__name__
    raise UserError(f"{shown(path)} is no {what}, or a damaged one ({detail})") from error


# -- bytes and text ----------------------------------------------------------------------------------------------------


def read_bytes(path: Path | str, what: str) -> bytes:
    """All bytes of a regular file.

    Raises:
        UserError: as :func:`open_regular`, or where it is too large.
    """
    with open_regular(path, what) as stream, reading(path, what):
        check_size(path, os.fstat(stream.fileno()).st_size)
        return stream.read()


#: of a list of names or a table of numbers as text
TEXT_LIMIT = 2**28


def read_text(path: Path | str, what: str, packed: bool = False) -> str:
    """A text file, UTF-8, of at most 256 MiB.

    Args:
        path: the file.
        what: what it should be, in words.
        packed: whether it is compressed by bzip2.

    Raises:
        UserError: where it cannot be read, is larger, or no text.
    """
    raw = read_bytes(path, what)
    with reading(path, what):
        with bz2.BZ2File(BytesIO(raw)) if packed else BytesIO(raw) as stream:
            text = stream.read(TEXT_LIMIT + 1)
        if len(text) > TEXT_LIMIT:
            raise UserError(f"{shown(path)} has more than the {TEXT_LIMIT // 2**20} MiB that are read of a text")
        return text.decode("utf-8")


# -- pictures and spreadsheets -----------------------------------------------------------------------------------------


def read_picture(path: Path | str) -> np.ndarray:
    """A JPEG or PNG picture, (height, width, 3) uint8.

    Raises:
        UserError: where it cannot be read, or has more pixels than Pillow takes for sane (90 million).
    """
    from PIL import Image

    what = "JPEG or PNG picture"
    with open_regular(path, f"a {what}") as stream, reading(path, what):
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with Image.open(stream, formats=("JPEG", "PNG")) as picture:
                return np.asarray(picture.convert("RGB"))
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise UserError(f"{shown(path)} is too large a picture ({error})") from error


#: of a spreadsheet: bytes unpacked, and rows
SHEET_LIMIT, SHEET_ROWS = 2**28, 5000


def read_sheet(path: Path | str, sheet: str, header: int, columns: Sequence[str]) -> pd.DataFrame:
    """The first rows of a sheet of an .xlsx file.

    Args:
        path: the file.
        sheet: its sheet.
        header: the row that names the columns, from 0.
        columns: those that are wanted.

    Raises:
        UserError: where it cannot be read, is too large, lacks a column, or openpyxl is not installed.
    """
    import pandas as pd

    raw = BytesIO(read_bytes(path, "an .xlsx file"))
    with reading(path, f".xlsx file with a sheet {sheet}"):
        with zipfile.ZipFile(raw) as packed:
            if sum(member.file_size for member in packed.infolist()) > SHEET_LIMIT:
                raise UserError(f"{shown(path)} has more than the {SHEET_LIMIT // 2**20} MiB of a spreadsheet")
        try:
            frame = pd.read_excel(raw, sheet_name=sheet, header=header, nrows=SHEET_ROWS, engine="openpyxl")
        except ImportError as error:
            raise UserError(f"{shown(path)} is a spreadsheet, which needs openpyxl: pip install openpyxl") from error
    lacking = [column for column in columns if column not in frame.columns]
    if lacking:
        raise UserError(f"{shown(path)}: sheet {sheet} lacks the column {lacking[0]!r}")
    return frame[list(columns)]
