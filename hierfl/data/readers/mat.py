"""Numeric arrays of .mat files (MATLAB 5). Sizes are checked before memory is taken."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ...errors import UserError
from ...files import shown
from .contents import read_bytes
from .limits import check_size, reading

#: MATLAB's types of stored numbers, and its classes of arrays
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
_MATRIX, _COMPRESSED, _COMPLEX = 14, 15, 0x0800


def read_mat(path: Path | str, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Numeric arrays of a MATLAB file of version 5 (MATLAB 5 to 7).

    Args:
        path: the file.
        names: of the arrays, all of which must be there.

    Raises:
        UserError: for another format or version, what is damaged or too large, or lacks an array of numbers.
    """
    data, what = read_bytes(path, f"a .mat file with {', '.join(names)}"), "MATLAB 5 file"
    arrays: dict[str, np.ndarray] = {}
    with reading(path, what):
        order = {b"IM": "<", b"MI": ">"}.get(data[126:128], "")
        if not order or struct.unpack_from(f"{order}H", data, 124) != (0x0100,):
            raise ValueError("it has another format or version")
        left = memoryview(data)[128:]
        unpacked = 0
        while len(left):
            kind, element, left = _element(left, order, packed=True)
            if kind == _COMPRESSED:
                content = _inflated(path, element, order, unpacked)
                unpacked += len(content)
                kind, element, _ = _element(memoryview(content), order)
            array = _matrix(element, order) if kind == _MATRIX else None
            if array and array[0] in names:
                arrays[array[0]] = array[1]
    missing = [name for name in names if name not in arrays]
    if missing:
        raise UserError(f"{shown(path)} is no {what} with {', '.join(names)}: it lacks numbers {', '.join(missing)}")
    return arrays


def _element(data: memoryview, order: str, packed: bool = False) -> tuple[int, memoryview, memoryview]:
    """Type, content, and what follows. Short contents lie in the tag; others are padded to 8 bytes, packed ones not."""
    kind, size = struct.unpack_from(f"{order}II", data)
    if kind >> 16:
        kind, size = kind & 0xFFFF, kind >> 16
        if size > 4:
            raise ValueError("a short element has more than 4 bytes")
        return kind, data[4 : 4 + size], data[8:]
    if size > len(data) - 8:
        raise ValueError(f"{size} bytes are declared, {len(data) - 8} are there")
    end = 8 + (size if packed and kind == _COMPRESSED else -(-size // 8) * 8)
    return kind, data[8 : 8 + size], data[end:]


def _inflated(path: Path | str, packed: memoryview, order: str, unpacked: int) -> bytes:
    """A compressed element; the size that it declares is checked first."""
    unpacker = zlib.decompressobj()
    tag = unpacker.decompress(packed, 8)
    (size,) = struct.unpack_from(f"{order}I", tag, 4)
    check_size(path, unpacked + size)
    content = tag + unpacker.decompress(unpacker.unconsumed_tail, max(size, 1))
    if len(content) < 8 + size:
        raise EOFError("a compressed array ends too early")
    # the check sum comes after the content
    if not unpacker.eof and (unpacker.decompress(unpacker.unconsumed_tail, 1) or not unpacker.eof):
        raise ValueError("a compressed array is longer than it declares")
    return content


def _matrix(data: memoryview, order: str) -> tuple[str, np.ndarray] | None:
    """Name and values of an array; None for what holds no real numbers."""
    parts = _elements(data, order)
    (_, flags), (_, dimensions), (_, name) = next(parts), next(parts), next(parts)
    (flag,) = struct.unpack_from(f"{order}I", flags)
    if (flag & 0xFF) not in _CLASSES or flag & _COMPLEX:
        return None
    kind, values = next(parts)
    if kind not in _STORED:
        raise ValueError(f"numbers of type {kind}")
    shape = struct.unpack(f"{order}{len(dimensions) // 4}i", dimensions)
    stored = np.frombuffer(values, np.dtype(order + _STORED[kind]))
    if min(shape, default=0) < 0 or math.prod(shape) != len(stored):
        raise ValueError(f"shape {shape[:8]} is declared, {len(stored)} numbers are there")
    return bytes(name).decode("ascii"), stored.astype(_CLASSES[flag & 0xFF]).reshape(shape, order="F")


def _elements(data: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    while len(data):
        kind, content, data = _element(data, order)
        yield kind, content
    raise ValueError("an array is incomplete")
