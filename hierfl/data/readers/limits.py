"""How large the data of a file may be, and one line for a file that is damaged."""

from __future__ import annotations

import os
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from ...errors import UserError
from ...files import shown

GIB = 2**30
#: the environment variable that says how many GiB the data of one file may have, and what holds without it
LIMIT, DEFAULT_GIB = "HIERFL_MAX_GIB", 16.0
#: what readers of formats raise for damaged input, our own and other people's
DAMAGED = (
    ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, MemoryError, OSError, RuntimeError,
    SyntaxError, TypeError, ValueError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def byte_limit() -> int:
    """How many bytes the data of one file may have: ``HIERFL_MAX_GIB``, or 16 GiB, or half of a smaller memory.

    Raises:
        UserError: where the environment variable is no positive number.
    """
    text = os.environ.get(LIMIT, "").strip()
    if text:
        try:
            limit = float(text)
        except ValueError:
            limit = float("nan")
        if not 0 < limit < 2**33:
            raise UserError(f"{LIMIT} is a number of GiB, as in {LIMIT}=32; not {shown(text)!r}")
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
