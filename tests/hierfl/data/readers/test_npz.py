"""Arrays from elsewhere: taken by what is there, not by what they declare; anything else is one line."""

from __future__ import annotations

import os
import struct
import sys
import tracemalloc
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from support.foreign_files import arrays, one_line

from hierfl import UserError
from hierfl.data.npz import load_npz
from hierfl.data.readers.limits import byte_limit
from hierfl.data.readers.npz import read_npz


def npy(header: object, data: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    """An .npy file with this header, whatever it says."""
    text = (header if isinstance(header, str) else repr(header)).encode("latin-1") + b"\n"
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version == (1, 0) else "<I", len(text)) + text + data


def packed(path: Path, kind: int = zipfile.ZIP_STORED, **members: bytes) -> Path:
    """A zip file of the usual arrays, some of them replaced by these bytes."""
    with zipfile.ZipFile(path, "w", kind) as file:
        for name, array in arrays().items():
            raw = BytesIO()
            np.save(raw, array)
            file.writestr(f"{name}.npy", members.get(name, raw.getvalue()))
    return path


def refused(path: Path, words: str) -> str:
    with pytest.raises(UserError, match=words) as error:
        load_npz(path)
    return one_line(error)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"descr": "<f8", "fortran_order": False, "shape": (2**40, 3)}, r"24,576\.0 GiB, more than the .* HIERFL_MAX"),
        ({"descr": "<f8", "fortran_order": False, "shape": (12, 4)}, "384 bytes are declared"),
        ({"descr": "<f8", "fortran_order": False, "shape": (12, -3)}, "negative shape"),
        ({"descr": "<f8", "fortran_order": False, "shape": (10**30, 10**30)}, "GiB, more than"),
        ({"descr": "<f8", "fortran_order": False, "shape": ()}, "8 bytes are declared"),
        ({"descr": "|S0", "fortran_order": False, "shape": (10**15,)}, "neither numbers nor text"),
        ({"descr": "|V8", "fortran_order": False, "shape": (12, 3)}, "neither numbers nor text"),
        ({"descr": "<M8[s]", "fortran_order": False, "shape": (12, 3)}, "neither numbers nor text"),
        ({"descr": "<c16", "fortran_order": False, "shape": (12, 3)}, "neither numbers nor text"),
        ({"descr": [("a", "<f8")], "fortran_order": False, "shape": (12, 3)}, "neither numbers nor text"),
        ({"descr": "|O", "fortran_order": False, "shape": (12, 3)}, "cannot be read without pickle"),
        ({"descr": "<q9", "fortran_order": False, "shape": (12, 3)}, "descr is not a valid dtype"),
        ({"descr": "<f8", "fortran_order": 3, "shape": (12, 3)}, "not a valid bool"),
        ({"shape": (12, 3)}, "correct keys"),
        ({1: 2, "shape": 3}, "damaged"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (12, 3", "damaged"),
        ("{'descr': '<f8' 'fortran_order'", "damaged"),
        ("(" * 5000, "damaged"),
        ("-" * 9000 + "1", "damaged"),
        ("{'a': '\\d'}", "damaged"),
        ("'" * 20000, "damaged"),
        ("__import__('os').abort()", "damaged"),
    ],
)
def test_an_array_is_taken_by_what_is_there_and_not_by_what_it_declares(
    header: object, words: str, tmp_path: Path
) -> None:
    refused(packed(tmp_path / "x.npz", x_train=npy(header, b"\0" * 288)), words)
    refused(packed(tmp_path / "x.npz", x_train=npy(header, b"\0" * 288, (2, 0))), words)


def test_a_bomb_is_refused_before_memory_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = {"descr": "<f8", "fortran_order": False, "shape": (2**22, 4)}
    bomb = packed(tmp_path / "x.npz", zipfile.ZIP_DEFLATED, x_train=npy(shape, bytes(2**27)))
    assert bomb.stat().st_size < 2**18
    monkeypatch.setenv("HIERFL_MAX_GIB", "0.1")
    tracemalloc.start()
    message = refused(bomb, "it has 0.1 GiB, more than the 0.1 that are read; .* HIERFL_MAX_GIB=1")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**22, message
    monkeypatch.setenv("HIERFL_MAX_GIB", "1")
    refused(bomb, "do not fit together")  # it may be read, then
    for nonsense in ("0", "-1", "nan", "inf", "many"):
        monkeypatch.setenv("HIERFL_MAX_GIB", nonsense)
        refused(bomb, "HIERFL_MAX_GIB is a number of GiB")


def test_the_limit_is_16_gib_or_half_of_a_smaller_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HIERFL_MAX_GIB", raising=False)
    for pages, limit in ((2**30, 16 * 2**30), (2**20, 2**31)):
        monkeypatch.setattr(os, "sysconf", lambda name, pages=pages: pages if name == "SC_PHYS_PAGES" else 4096)
        assert byte_limit() == limit


def test_a_false_declaration_of_the_zip_directory_takes_no_memory(tmp_path: Path) -> None:
    """The directory says 2 GiB and the header agrees, but a few bytes follow."""
    header = npy({"descr": "|u1", "fortran_order": False, "shape": (2**31,)})
    path = packed(tmp_path / "x.npz", zipfile.ZIP_DEFLATED, x_train=header + b"\0" * 100)
    raw = bytearray(path.read_bytes())
    entry = raw.index(b"PK\1\2")  # the first one is of x_train
    raw[entry + 24 : entry + 28] = struct.pack("<I", len(header) + 2**31)
    path.write_bytes(raw)
    resource = pytest.importorskip("resource")  # not on Windows

    def peak() -> int:
        """Memory that was ever in use, bytes: what is asked for and never written takes none."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    before = peak()
    refused(path, "x_train .*(ends too early|CRC)")
    assert peak() - before < 2**28


def test_zip_files_that_numpy_does_not_make_are_refused(tmp_path: Path) -> None:
    path = packed(tmp_path / "x.npz", zipfile.ZIP_DEFLATED)
    raw = bytearray(path.read_bytes())
    start = raw.index(b"PK\3\4") + 30 + len("x_train.npy")
    broken = raw.copy()
    broken[start : start + 20] = b"\xff" * 20
    path.write_bytes(broken)
    refused(path, "x_train .*damaged")
    broken = raw.copy()
    broken[raw.index(b"PK\1\2") + 8] |= 1  # of the directory's entry
    broken[raw.index(b"PK\3\4") + 6] |= 1
    path.write_bytes(broken)
    refused(path, "x_train is encrypted")
    for kind in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        refused(packed(path, kind), "another method than deflate")
    with zipfile.ZipFile(packed(path), "a") as file, pytest.warns(UserWarning, match="Duplicate"):
        file.writestr("x_train.npy", npy("{}"))
    refused(path, "two arrays x_train")


def test_arrays_of_every_number_type_and_order_are_read_as_they_are(tmp_path: Path) -> None:
    kinds = ("<f8", ">f8", "<f4", ">f4", "<f2", "<i2", ">i8", "|u1", "|b1", "<u4")
    wanted = {f"a{k}": np.arange(24).reshape(2, 3, 4).astype(kind) for k, kind in enumerate(kinds)}
    wanted |= {"fortran": np.asfortranarray(wanted["a1"]), "scalar": np.array(3.5), "none": np.zeros((0, 3))}
    wanted |= {"names": np.array(["ä", "b", ""]), "python2": np.array([b"a", b"bc"]), "big": np.array(["ab"], ">U2")}
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "x.npz", **wanted)
        got = read_npz(tmp_path / "x.npz", list(wanted), ["absent"])
        assert list(got) == list(wanted)
        for name, array in wanted.items():
            assert got[name].shape == array.shape
            assert got[name].dtype.isnative
            assert (got[name] == array.astype("U" if array.dtype.kind in "SU" else array.dtype)).all()
            assert got[name].dtype.itemsize == array.dtype.itemsize or name == "python2"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x_train": np.zeros((12, 0)), "x_test": np.zeros((6, 0))}, r"shape \(12, 0\): an input without features"),
        ({"x_train": np.array(1.0)}, r"shape \(\)"),
        ({"y_train": np.array(1)}, r"shape \(\)"),
        ({"x_train": np.full((12, 3), np.finfo(np.longdouble).max)}, "36 values that are NaN or infinite"),
        (
            {"client_train": np.full(12, np.nan), "client_test": np.zeros(6)},
            "client_train holds nan: clients are named",
        ),
        ({"fine_train": np.array(["a"] * 12), "fine_test": np.zeros(6)}, "fine_train holds <U1, not numbers"),
        (
            {"client_train": np.array([0xD800] * 12, np.uint32).view("<U1"), "client_test": np.array(["a"] * 6)},
            "client_train .*text that is none",
        ),
        ({"client_train": np.array([b"\xff"] * 12), "client_test": np.array(["a"] * 6)}, "client_train .*decode"),
    ],
)
def test_arrays_that_are_no_examples_are_refused(change: dict, words: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", **{**arrays(), **change})
    refused(tmp_path / "mine.npz", words)
