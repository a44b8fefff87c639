"""Arrays in files: .npz, idx (the MNIST family), .mat (MATLAB 5).

The readers take what a header says of shapes and sizes for a claim: it must fit the bytes that are there, and the limit
of :mod:`hierfl.data.readers.safe_files`, before memory is taken. Only numbers and, in .npz, text are read; nothing is ever unpickled.
"""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from ...errors import UserError
from .safe_files import check_size, open_regular, read_bytes, reading, shown

# -- .npz --------------------------------------------------------------------------------------------------------------

#: bytes that are unpacked at a time
STEP = 2**18


def read_npz(path: Path | str, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Arrays of an .npz file, in the machine's byte order.

    Args:
        path: the file.
        required: names of arrays that it must hold.
        optional: names of arrays that it may hold. Others are not read.

    Raises:
        UserError: for what is no .npz, or damaged, encrypted, larger than :func:`hierfl.data.readers.safe_files.byte_limit`, or lacks
            an array; for one that is there twice, or holds neither numbers nor text.
    """
    with open_regular(path, f"an .npz with {', '.join(required)}") as stream:
        start = stream.read(6)
        stream.seek(0)
        if start == b"\x93NUMPY":
            raise UserError(f"{shown(path)} is no .npz file but a single array")
        with reading(path, ".npz file"), zipfile.ZipFile(stream) as packed:
            members: dict[str, zipfile.ZipInfo] = {}
            for member in packed.infolist():
                name = member.filename.removesuffix(".npy")
                if name in members:
                    raise UserError(f"{shown(path)} holds two arrays {shown(name)}")
                members[name] = member
            missing = [name for name in required if name not in members]
            if missing:
                has = shown(", ".join(members))[:200] or "nothing"
                raise UserError(f"{shown(path)} lacks {', '.join(missing)}; it has {has}")
            wanted = {name: members[name] for name in (*required, *optional) if name in members}
            check_size(path, sum(member.file_size for member in wanted.values()))
            return {name: _member(path, packed, name, member) for name, member in wanted.items()}


def _member(path: Path | str, packed: zipfile.ZipFile, name: str, member: zipfile.ZipInfo) -> np.ndarray:
    """One array. What is unpacked never exceeds the size that the directory declares, which was checked."""
    if member.flag_bits & 1:
        raise UserError(f"{shown(path)}: array {name} is encrypted")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # (numpy writes no others)
        raise UserError(f"{shown(path)}: array {name} is compressed by another method than deflate")
    with reading(f"{path}: array {name}", "array that can be read"), packed.open(member) as stream:
        shape, fortran, dtype = _npy_header(f"{path}: array {name}", stream)
        count = math.prod(shape)
        size = count * dtype.itemsize
        if size != member.file_size - stream.tell():
            check_size(path, size, f"array {name} with shape {shape} of {dtype}")
            raise ValueError(f"{size} bytes are declared by shape {shape} of {dtype}, {member.file_size} are there")
        # (empty memory costs nothing until it is filled, so that a false declaration takes none)
        flat = np.empty(count, dtype=dtype)
        view, done = flat.view(np.uint8).data if count else memoryview(b""), 0
        while done < size:
            got = stream.readinto(view[done : done + STEP])  # type: ignore[attr-defined]
            if not got:
                raise EOFError("it ends too early")
            done += got
        stream.read(1)  # (the check sum is compared at the end)
        array = flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)
        array = array.astype(dtype.newbyteorder("="), copy=False)
        if dtype.kind == "S":
            array = np.char.decode(array, "utf-8")
        if dtype.kind == "U" and count:
            _check_text(array)
        return array


def _check_text(array: np.ndarray) -> None:
    """Refuses numbers that are no characters: numpy takes any, and fails later."""
    codes = np.ascontiguousarray(array).view(np.uint32)
    if ((codes > 0x10FFFF) | ((codes >= 0xD800) & (codes <= 0xDFFF))).any():
        raise ValueError("it holds text that is none")


def _npy_header(where: str, stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether Fortran's order, dtype; only of arrays that can be read without pickle."""
    version = np.lib.format.read_magic(stream)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:  # (version 3 is for records whose fields have names in other alphabets)
        raise UserError(f"{shown(where)} has format {version[0]}.{version[1]}, of which nothing is read")
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise UserError(f"{shown(where)} cannot be read without pickle: it holds objects")
    if dtype.kind not in "biufUS" or not dtype.itemsize:
        raise UserError(f"{shown(where)} holds {shown(dtype)[:60]}: neither numbers nor text")
    if any(length < 0 for length in shape):
        raise UserError(f"{shown(where)} has a negative shape {shape}")
    return shape, fortran, dtype


# -- idx ---------------------------------------------------------------------------------------------------------------


def read_idx(path: Path | str, dimensions: int) -> np.ndarray:
    """Bytes in the format of MNIST: a magic number, big-endian sizes, the bytes.

    Raises:
        UserError: for another format or number of dimensions, or sizes that do not fit the file.
    """
    data = read_bytes(path, "an idx file of MNIST's format")
    head = 4 + 4 * dimensions
    with reading(path, "idx file of MNIST's format"):
        if data[:4] != bytes([0, 0, 8, dimensions]):
            raise ValueError(f"it does not begin as bytes of {dimensions} dimensions do")
        shape = struct.unpack_from(f">{dimensions}I", data, 4)
        if math.prod(shape) != len(data) - head:
            raise ValueError(f"it declares shape {shape}, and {len(data) - head} bytes follow")
        return np.frombuffer(data, np.uint8, offset=head).reshape(shape)


# -- .mat --------------------------------------------------------------------------------------------------------------

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
            found = _matrix(element, order) if kind == _MATRIX else None
            if found and found[0] in names:
                arrays[found[0]] = found[1]
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
