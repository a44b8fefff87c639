"""Pictures, texts, sheets, idx and MATLAB files from elsewhere: what is damaged, or a bomb, is one line."""

from __future__ import annotations

import bz2
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy.io import loadmat, savemat
from support.foreign_files import one_line

from hierfl import UserError
from hierfl.data.readers.contents import read_picture, read_sheet, read_text
from hierfl.data.readers.idx import read_idx
from hierfl.data.readers.mat import read_mat


def test_idx_sizes_are_claims(tmp_path: Path) -> None:
    path, good = tmp_path / "idx", struct.pack(">BBBB3I", 0, 0, 8, 3, 2, 3, 4) + bytes(range(24))
    path.write_bytes(good)
    assert (read_idx(path, 3).reshape(-1) == np.arange(24)).all()
    for bad, words in (
        (struct.pack(">BBBB3I", 0, 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1) + b"123", "it declares shape"),
        (good[:20], "it declares shape"),
        (good + b"x", "it declares shape"),
        (good[:6], "damaged"),
        (b"\0\0\x0d\3" + good[4:], "does not begin"),
        (b"\x1f\x8b\x08\x00", "does not begin"),
        (b"", "does not begin"),
    ):
        path.write_bytes(bad)
        with pytest.raises(UserError, match=words) as error:
            read_idx(path, 3)
        one_line(error)


@pytest.mark.parametrize("compress", [False, True])
def test_matlab_files_are_read_as_scipy_reads_them(compress: bool, tmp_path: Path) -> None:
    rng, path = np.random.default_rng(1), tmp_path / "x.mat"
    for kind in ("u1", "i1", "u2", "i2", "u4", "i4", "i8", "u8", "f4", "f8"):
        wanted = {"X": rng.integers(0, 100, (3, 4, 3, 5)).astype(kind), "y": np.arange(5)[:, None].astype(kind)}
        others = {"text": "hello", "cell": np.array([1, "a"], dtype=object), "z": np.ones(2) * 1j}
        savemat(path, {**others, **wanted}, do_compression=compress)
        got, theirs = read_mat(path, ("X", "y")), loadmat(path)
        for name in wanted:
            assert got[name].dtype == theirs[name].dtype
            assert (got[name] == theirs[name]).all()
    with pytest.raises(UserError, match="lacks numbers z"):
        read_mat(path, ("X", "z"))  # complex


def test_a_matlab_bomb_is_refused_before_memory_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.mat"
    savemat(path, {"X": np.zeros((2**24,), np.uint8), "y": np.zeros(3)}, do_compression=True)
    monkeypatch.setenv("HIERFL_MAX_GIB", "0.01")
    tracemalloc.start()
    with pytest.raises(UserError, match="GiB, more than the 0.0 that are read"):
        read_mat(path, ("X", "y"))
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    # one that declares little is not unpacked further than that
    raw = path.read_bytes()
    tag = struct.pack("<II", 14, 64)
    lying = zlib.compress(tag + bytes(2**24))
    path.write_bytes(raw[:128] + struct.pack("<II", 15, len(lying)) + lying)
    with pytest.raises(UserError, match="longer than it declares"):
        read_mat(path, ("X",))
    for version in (b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM", b"MATLAB 5.0".ljust(124) + b"\0\1XX", b"short"):
        path.write_bytes(version)
        with pytest.raises(UserError, match="MATLAB 5 file, or a damaged one"):
            read_mat(path, ("X",))


def test_pictures_that_are_bombs_damaged_or_of_another_format_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.png"
    picture = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    picture.save(path)
    assert (read_picture(path) == np.asarray(picture)).all()
    turned = Image.Exif()
    turned[0x0112] = 6  # the camera was held on its side
    picture.save(tmp_path / "turned.png", exif=turned)
    assert (read_picture(tmp_path / "turned.png") == np.asarray(picture)).all()
    assert (read_picture(tmp_path / "turned.png", upright=True) == np.rot90(np.asarray(picture), -1)).all()
    Image.fromarray(np.arange(12, dtype=np.uint16).reshape(3, 4) * 5000).save(tmp_path / "deep.png")
    with pytest.raises(UserError, match="deep.png has 16 bits a pixel, and pictures have 8"):
        read_picture(tmp_path / "deep.png")
    hidden = Image.fromarray(np.dstack([np.asarray(picture), np.full((4, 4), 255, np.uint8)]))
    hidden.save(tmp_path / "opaque.png")
    assert (read_picture(tmp_path / "opaque.png", opaque=True) == np.asarray(picture)).all()
    hidden.putpixel((0, 0), (0, 0, 0, 200))
    hidden.save(tmp_path / "glass.png")
    with pytest.raises(UserError, match="glass.png has transparent pixels, whose colour is not seen"):
        read_picture(tmp_path / "glass.png", opaque=True)
    picture.save(tmp_path / "film.png", save_all=True, append_images=[picture.rotate(90)])
    with pytest.raises(UserError, match="film.png is an animation"):
        read_picture(tmp_path / "film.png", opaque=True)
    good = path.read_bytes()
    path.write_bytes(good[:-30])
    with pytest.raises(UserError, match="damaged"):
        read_picture(path)
    for width in (10_000, 2**30):  # Pillow warns of the one, and raises for the other
        head = good[12:16] + struct.pack(">II", width, 10_000) + good[24:29]
        path.write_bytes(good[:12] + head + struct.pack(">I", zlib.crc32(head)) + good[33:])
        with pytest.raises(UserError, match="too large a picture|damaged") as error:
            read_picture(path)
        one_line(error)
    for kind in ("gif", "bmp", "eps"):
        picture.save(path, kind)
        with pytest.raises(UserError, match="no JPEG or PNG picture"):
            read_picture(path)


def test_texts_that_are_none_or_too_long_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="codec can't decode"):
        read_text(path, "a list")
    path.write_bytes(bz2.compress(b"a" * 2000)[:-4])
    with pytest.raises(UserError, match="ended before"):
        read_text(path, "a list", packed=True)
    monkeypatch.setattr("hierfl.data.readers.contents.TEXT_LIMIT", 1000)
    path.write_bytes(bz2.compress(b"a" * 2000))
    with pytest.raises(UserError, match="more than the 0 MiB"):
        read_text(path, "a list", packed=True)


def test_spreadsheets_that_are_none_or_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.xlsx"
    with pd.ExcelWriter(path) as writer:
        pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}).to_excel(writer, sheet_name="S", index=False)
    assert read_sheet(path, "S", 0, ["b", "a"]).to_numpy().tolist() == [["x", 1], ["y", 2]]
    for sheet, columns, words in (("T", ["a"], "no .xlsx file with a sheet T"), ("S", ["c"], "lacks the column 'c'")):
        with pytest.raises(UserError, match=words):
            read_sheet(path, sheet, 0, columns)
    good = path.read_bytes()
    monkeypatch.setattr("hierfl.data.readers.contents.SHEET_LIMIT", 2000)
    with pytest.raises(UserError, match="of a spreadsheet"):
        read_sheet(path, "S", 0, ["a"])
    monkeypatch.undo()
    for bad in (b"", b"hello", good[:-100], good[:200] + b"x" * 100 + good[300:]):
        path.write_bytes(bad)
        with pytest.raises(UserError, match="damaged") as error:
            read_sheet(path, "S", 0, ["a"])
        one_line(error)
