"""Bytes, text, pictures and spreadsheets of files that come from elsewhere."""

from __future__ import annotations

import bz2
import os
import warnings
import zipfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...errors import UserError
from ...files import shown
from .limits import check_size, reading
from .safe_files import open_regular

if TYPE_CHECKING:
    import pandas as pd
    from PIL import Image


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


def read_picture(path: Path | str, *, upright: bool = False, opaque: bool = False) -> np.ndarray:
    """A JPEG or PNG picture, (height, width, 3) uint8.

    Args:
        path: the file.
        upright: turn it as its EXIF orientation says, which cameras write instead of turning the pixels.
        opaque: refuse transparent pixels and animations, which have no one colour.

    Raises:
        UserError: where it cannot be read, has more than 8 bits for a grey pixel, or more pixels than Pillow takes for
            sane (90 million).
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    what = "JPEG or PNG picture"
    with open_regular(path, f"a {what}") as stream, reading(path, what):
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with Image.open(stream, formats=("JPEG", "PNG")) as picture:
                if picture.mode.startswith(("I", "F")):  # Pillow would cut them off at 255
                    raise UserError(f"{shown(path)} has 16 bits a pixel, and pictures have 8: convert it first")
                if opaque:
                    _check_opaque(picture, path)
                return np.asarray((ImageOps.exif_transpose(picture) if upright else picture).convert("RGB"))
        except UnidentifiedImageError as error:  # Pillow's words name an open stream, not the file
            raise UserError(
                f"{shown(path)} is no {what}, or a damaged one (its first bytes are no such header)"
            ) from error
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise UserError(f"{shown(path)} is too large a picture ({error})") from error


def _check_opaque(picture: Image.Image, path: Path | str) -> None:
    """Refuses a PNG whose colours depend on what is behind it, or on the time.

    Raises:
        UserError: for transparent pixels and for several frames.
    """
    if picture.format == "PNG" and getattr(picture, "n_frames", 1) > 1:
        raise UserError(f"{shown(path)} is an animation: save one frame of it")
    if not picture.has_transparency_data:
        return
    least = int(np.asarray(picture.convert("RGBA"))[..., 3].min())
    if least < 255:
        raise UserError(f"{shown(path)} has transparent pixels, whose colour is not seen: put it on a background first")


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
