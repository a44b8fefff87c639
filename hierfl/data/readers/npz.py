"""Arrays of .npz files.

What a header says of shapes and sizes is a claim: it must fit the bytes that are there, and the limit of
:mod:`hierfl.data.readers.limits`, before memory is taken. Only numbers and text are read; nothing is ever unpickled.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from ...errors import UserError
from ...files import shown
from .limits import check_size, reading
from .safe_files import open_regular

#: bytes that are unpacked at a time
BYTES_AT_A_TIME = 2**18


def read_npz(
    path: Path | str, required: Sequence[str], optional: Sequence[str] = (), unread: list[str] | None = None
) -> dict[str, np.ndarray]:
    """Arrays of an .npz file, in the machine's byte order.

    Args:
        path: the file.
        required: names of arrays that it must hold.
        optional: names of arrays that it may hold. Others are not read.
        unread: gets the names of those others.

    Raises:
        UserError: for what is no .npz, or damaged, encrypted, larger than
            :func:`hierfl.data.readers.limits.byte_limit`, or lacks an array; for one that is there twice,
            or holds neither numbers nor text.
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
            if unread is not None:
                unread += [name for name in members if name not in wanted]
            return {name: _member(path, packed, name, member) for name, member in wanted.items()}


def _member(path: Path | str, packed: zipfile.ZipFile, name: str, member: zipfile.ZipInfo) -> np.ndarray:
    """One array. What is unpacked never exceeds the size that the directory declares, which was checked."""
    if member.flag_bits & 1:
        raise UserError(f"{shown(path)}: array {name} is encrypted")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # numpy writes no others
        raise UserError(f"{shown(path)}: array {name} is compressed by another method than deflate")
    with reading(f"{path}: array {name}", "array that can be read"), packed.open(member) as stream:
        shape, fortran, dtype = _npy_header(f"{path}: array {name}", stream)
        count = math.prod(shape)
        size = count * dtype.itemsize
        if size != member.file_size - stream.tell():
            check_size(path, size, f"array {name} with shape {shape} of {dtype}")
            raise ValueError(f"{size} bytes are declared by shape {shape} of {dtype}, {member.file_size} are there")
        # Empty memory costs nothing until it is filled, so that a false declaration takes none.
        flat = np.empty(count, dtype=dtype)
        view, done = flat.view(np.uint8).data if count else memoryview(b""), 0
        while done < size:
            got = stream.readinto(view[done : done + BYTES_AT_A_TIME])  # type: ignore[attr-defined]
            if not got:
                raise EOFError("it ends too early")
            done += got
        stream.read(1)  # the check sum is compared at the end
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
    if read is None:  # version 3 is for records whose fields have names in other alphabets
        raise UserError(f"{shown(where)} has format {version[0]}.{version[1]}, of which nothing is read")
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise UserError(f"{shown(where)} cannot be read without pickle: it holds objects")
    if dtype.kind not in "biufUS" or not dtype.itemsize:
        raise UserError(f"{shown(where)} holds {shown(dtype)[:60]}: neither numbers nor text")
    if any(length < 0 for length in shape):
        raise UserError(f"{shown(where)} has a negative shape {shape}")
    return shape, fortran, dtype
