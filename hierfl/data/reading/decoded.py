"""The text of a file that may be compressed, or in another encoding than UTF-8."""

from __future__ import annotations

import codecs
import zlib
from pathlib import Path

from ...errors import UserError
from ...files import shown
from ..readers.limits import check_size
from ..readers.safe_files import open_regular
from .remedies import Remedies

GZIP, ZIP, OLD_EXCEL = b"\x1f\x8b", b"PK\x03\x04", b"\xd0\xcf\x11\xe0"
#: what a file may begin with that says its encoding; the longer ones first
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"), (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip


def contents(path: Path | str) -> bytes:
    """All bytes of a regular file, decompressed where it is one of gzip's.

    Raises:
        UserError: for no such file, a damaged one, or more than is read.
    """
    with open_regular(path, "a .csv with a header") as stream:
        data = stream.read()
    if data[:2] != GZIP:
        return data
    result, unpack = bytearray(), zlib.decompressobj(wbits=31)
    try:
        while data:
            piece = unpack.decompress(data, 1 << 24)
            result += piece
            check_size(path, len(result), "the unpacked file")
            data = unpack.unconsumed_tail
            if unpack.eof and (data := unpack.unused_data.lstrip(b"\0")):  # several, one after the other
                unpack = zlib.decompressobj(wbits=31)
            elif not data and not unpack.eof:
                raise UserError(f"{shown(path)} cannot be read: its gzip data end early")
    except zlib.error as error:
        raise UserError(f"{shown(path)} cannot be read: {error}") from error
    return bytes(result)


def decoded(path: Path | str, data: bytes, encoding: str, remedies: Remedies) -> str:
    """The text of a file's bytes.

    Args:
        path: of the file, for messages.
        data: its bytes.
        encoding: as it was said; empty for UTF-8, or what the file begins with.
        remedies: how remedies are written.

    Raises:
        UserError: for bytes that are no text in that encoding.
    """
    result = encoding or next((name for mark, name in MARKS if data.startswith(mark)), "") or _without_mark(data)
    try:
        text = data.decode(result).removeprefix("\ufeff")
    except UnicodeError as error:
        start = error.start if isinstance(error, UnicodeDecodeError) else 0
        line = data.count(b"\n", 0, start) + 1
        if encoding:
            raise UserError(f"{shown(path)} cannot be read as csv: line {line} is no text in {encoding}") from error
        ways = f"{remedies.say(encoding='latin-1')} or {remedies.say(encoding='cp1252')}"
        raise UserError(f"{shown(path)} cannot be read as csv: line {line} is no text in UTF-8: say {ways}") from error
    if "\0" in text:
        utf16 = remedies.say(encoding="utf-16")
        raise UserError(f"{shown(path)} cannot be read as csv: it holds NUL characters: say {utf16} if it is that")
    return text


def _without_mark(data: bytes) -> str:
    """UTF-16 of mostly Latin letters is known by its zeros."""
    start = data[:2000]
    odd, even = start[1::2], start[::2]
    if len(start) >= 8 and odd and not any(odd) and all(even):
        return "utf-16-le"
    if len(start) >= 8 and even and not any(even) and all(odd):
        return "utf-16-be"
    return "utf-8"
