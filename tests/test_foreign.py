"""Files from elsewhere: what is no regular file, damaged, hostile or larger than it should be is one line."""

from __future__ import annotations

import bz2
import os
import pickle
import socket
import struct
import subprocess
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy.io import loadmat, savemat

from hierfl import UserError
from hierfl.data.datasets.svhn_usps import read_usps
from hierfl.data.npz import load_npz
from hierfl.data.readers.cifar import read_batch, read_names
from hierfl.data.readers.contents import read_picture, read_sheet, read_text
from hierfl.data.readers.idx import read_idx
from hierfl.data.readers.limits import byte_limit
from hierfl.data.readers.mat import read_mat
from hierfl.data.readers.matlab_digits import read_matlab_digits
from hierfl.data.readers.npz import read_npz
from hierfl.data.readers.safe_files import open_regular, regular_file


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    text = str(error.value)
    assert text.isprintable()
    assert len(text) < 500
    return text


def test_what_is_no_regular_file_is_refused_and_never_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # (a socket's name must be short)
    os.mkfifo("pipe")
    Path("folder").mkdir()
    Path("a").symlink_to("b")
    Path("b").symlink_to("a")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    cases = {
        "pipe": "a named pipe", "folder": "a directory", "socket": "a socket", "/dev/zero": "a device",
        "a": "[Ss]ymlink loop|circle|symbolic links", "absent": "no file absent; it should be a table",
        "pipe/x": "no file", "nul\0byte": "null", "lone\udc80": "lone\\\\udc80 is not valid UTF-8",
        "\ud800": "UTF-8", "": "empty", "x" * 300: "[Tt]oo long",
        "~nobody-of-this-name/x": "home",
    }  # fmt: skip
    for name, words in cases.items():
        with pytest.raises(UserError, match=words) as error:
            open_regular(name, "a table")
        one_line(error)


def test_a_home_directory_is_expanded_and_links_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "x.csv").write_text("hello")
    (tmp_path / "link.csv").symlink_to("x.csv")
    assert regular_file(Path("~/link.csv"), "a table") == tmp_path.resolve() / "x.csv"
    with open_regular("~/x.csv") as stream:
        assert stream.read() == b"hello"


def test_a_pipe_that_takes_a_files_name_meanwhile_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "x.csv")
    monkeypatch.setattr("hierfl.data.readers.safe_files.regular_file", lambda path, what: path)
    with pytest.raises(UserError, match="not a regular file"):
        open_regular(tmp_path / "x.csv")


# -- .npz --------------------------------------------------------------------------------------------------------------


def arrays() -> dict[str, np.ndarray]:
    return {
        "x_train": np.arange(36.0).reshape(12, 3), "y_train": np.arange(12) % 3,
        "x_test": np.zeros((6, 3)), "y_test": np.arange(6) % 3,
    }  # fmt: skip


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
    said = refused(bomb, "it has 0.1 GiB, more than the 0.1 that are read; .* HIERFL_MAX_GIB=1")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**22, said
    monkeypatch.setenv("HIERFL_MAX_GIB", "1")
    refused(bomb, "do not fit together")  # (it may be read, then)
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
    entry = raw.index(b"PK\1\2")  # (the first one is of x_train)
    raw[entry + 24 : entry + 28] = struct.pack("<I", len(header) + 2**31)
    path.write_bytes(raw)
    refused(path, "x_train .*(ends too early|CRC)")


def test_zip_files_that_numpy_does_not_make_are_refused(tmp_path: Path) -> None:
    path = packed(tmp_path / "x.npz", zipfile.ZIP_DEFLATED)
    raw = bytearray(path.read_bytes())
    start = raw.index(b"PK\3\4") + 30 + len("x_train.npy")
    broken = raw.copy()
    broken[start : start + 20] = b"\xff" * 20
    path.write_bytes(broken)
    refused(path, "x_train .*damaged")
    broken = raw.copy()
    broken[raw.index(b"PK\1\2") + 8] |= 1  # (of the directory's entry)
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


# -- other formats -----------------------------------------------------------------------------------------------------


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
        read_mat(path, ("X", "z"))  # (complex)


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
    good = path.read_bytes()
    path.write_bytes(good[:-30])
    with pytest.raises(UserError, match="damaged"):
        read_picture(path)
    for width in (10_000, 2**30):  # (Pillow warns of the one, and raises for the other)
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


# -- CIFAR's pickles ---------------------------------------------------------------------------------------------------

IMAGES = np.random.default_rng(5).integers(0, 256, (7, 3072), dtype=np.uint8)


def python2(images: np.ndarray, labels: list[int]) -> bytes:
    """A batch as Python 2 and numpy of their time wrote it (protocol 2, strings of bytes), by hand."""

    def text(s: str) -> bytes:
        return b"U" + bytes([len(s)]) + s.encode()

    def number(n: int) -> bytes:
        return b"J" + struct.pack("<i", n)

    return b"".join([
        b"\x80\x02}q\x01(", text("batch_label"), b"q\x02", text("training batch 1 of 5"), b"q\x03",
        text("labels"), b"q\x04]q\x05(", *(number(k) for k in labels), b"e",
        text("data"), b"q\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85", text("b"),
        b"\x87Rq\x09(K\x01", number(len(images)), number(3072), b"\x86cnumpy\ndtype\nq\x0a", text("u1"),
        b"K\x00K\x01\x87Rq\x0b(K\x03", text("|"), b"NNN", number(-1), number(-1), b"K\x00tb\x89T",
        struct.pack("<i", images.size), images.tobytes(), b"tb",
        text("filenames"), b"q\x0c]q\x0d(", *(text(f"f{k}.png") + b"q\x0e" for k in range(len(images))), b"eu.",
    ])  # fmt: skip


def batches() -> dict[str, bytes]:
    content = {"batch_label": "one", "labels": list(range(7)), "data": IMAGES, "filenames": ["a"] * 7}
    made = {f"protocol {k}": pickle.dumps(content, protocol=k) for k in (2, 3, 4, 5)}
    return {**made, "python 2": python2(IMAGES, list(range(7)))}


@pytest.mark.parametrize("kind", list(batches()))
def test_cifar_batches_are_read_as_pickle_reads_them(kind: str, tmp_path: Path) -> None:
    raw = batches()[kind]
    wanted = pickle.loads(raw, encoding="latin1")
    assert wanted["data"].shape == (7, 3072)
    (tmp_path / "batch").write_bytes(raw)
    x, y = read_batch(tmp_path / "batch", "labels")
    assert (x.reshape(7, -1) == wanted["data"]).all()
    assert y.tolist() == wanted["labels"]


class Call:
    """Pickled as the call of anything."""

    def __init__(self, *what: object) -> None:
        self.what = what

    def __reduce__(self) -> tuple:
        return self.what[0], tuple(self.what[1:])  # type: ignore[return-value]


def hostile(mark: Path) -> dict[str, bytes]:
    """Pickles that would do something."""
    command = f"touch {mark}"
    made = {
        f"{function.__name__} {protocol}": pickle.dumps({"data": Call(function, *arguments)}, protocol=protocol)
        for function, *arguments in (
            (os.system, command), (eval, f"open({str(mark)!r}, 'w')"), (open, str(mark), "w"),
            (subprocess.check_call, ["touch", str(mark)]), (np.lib.format.open_memmap, str(mark), "w+", "u1", (3,)),
            (np.fromfile, str(mark)),
        )
        for protocol in (0, 1, 2, 4)
    }  # fmt: skip
    good = python2(IMAGES, list(range(7)))
    return {
        **made,
        "module under an allowed one": good.replace(b"cnumpy\nndarray\n", b"cnumpy\nos.system\n"),
        "instance": b"(S'" + command.encode() + b"'\nios\nsystem\n.",
        "object": b"(cos\nsystem\nS'" + command.encode() + b"'\no.",
        "newobj": b"\x80\x02cos\nsystem\n" + b"U\x01a\x85\x81.",
        "persistent": b"Pid\n.",
        "extension": b"\x82\x01.",
        "dtype called as code": good.replace(b"U\x02u1", b"U\x02O8"),
        "state of a list": b"\x80\x02]}b.",
        "subclass": good.replace(b"cnumpy\nndarray\n", b"cnumpy\nmemmap\n"),
        "shape that is none": good.replace(b"J" + struct.pack("<i", 7) + b"J", b"J" + struct.pack("<i", -7) + b"J"),
        "too few bytes": good.replace(b"J" + struct.pack("<i", 3072), b"J" + struct.pack("<i", 2**30)),
        "endless copies": b"\x80\x02}(U\x01ac_codecs\nencode\nq\x01X" + struct.pack("<I", 9000) + b"a" * 9000
        + b"q\x02U\x06latin1\x86q\x03R" + b"U\x01bh\x01h\x03R" * 50 + b"u.",
        "growing text": b"\x80\x04)" + b"\x94h\x00h\x00\x86" * 60 + b"\x8c\x01a\x93.",
        "deep": b"\x80\x02" + b"(" * 100_000 + b"t" * 100_000 + b".",
        "growing key": b"\x80\x02}N" + b"".join(b"q%ch%c\x86" % (k, k) for k in range(60)) + b"Ns.",
        "nothing": b"",
        "no end": good[:-1],
        "not a dictionary": pickle.dumps([1]),
        "labels that are none": pickle.dumps({"data": IMAGES, "labels": [0.5] * 7}),
        "fewer labels": pickle.dumps({"data": IMAGES, "labels": [1] * 6}),
        "other rows": pickle.dumps({"data": IMAGES[:, :-1], "labels": [1] * 7}),
        "huge labels": pickle.dumps({"data": IMAGES, "labels": [10**30] * 7}),
    }  # fmt: skip


def test_hostile_pickles_are_refused_and_nothing_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    for name, raw in hostile(mark).items():
        (tmp_path / "batch").write_bytes(raw)
        with pytest.raises(UserError, match="CIFAR's, or a damaged one") as error:
            read_batch(tmp_path / "batch", "labels")
        one_line(error)
        assert not mark.exists(), name


def test_a_hostile_pickle_would_have_been_executed_by_pickle(tmp_path: Path) -> None:
    """(or the test above would show nothing)"""
    mark = tmp_path / "executed"
    pickle.loads(hostile(mark)["system 2"])
    assert mark.exists()


def test_names_are_text_of_either_python(tmp_path: Path) -> None:
    for names in (["a", "b"], [b"a", b"b"]):
        (tmp_path / "meta").write_bytes(pickle.dumps({"fine_label_names": names}))
        assert read_names(tmp_path / "meta", "fine_label_names") == ["a", "b"]
    with pytest.raises(UserError, match="damaged"):
        read_names(tmp_path / "meta", "label_names")


# -- damage of any kind ------------------------------------------------------------------------------------------------


def mutated(raw: bytes, rng: np.random.Generator) -> bytes:
    """One to eight damages: bytes changed, cut out, put in, repeated, zeroed; or the end lost."""
    out = bytearray(raw)
    for _ in range(int(rng.integers(1, 9))):
        # (half of them near the start, where headers are)
        top = len(out) if rng.random() < 0.5 else min(len(out), 200)
        at, length = int(rng.integers(0, max(top, 1))), int(rng.integers(1, 12))
        kind = rng.integers(7)
        if kind == 0 and len(out):
            out[min(at, len(out) - 1)] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            out[at : at + length] = rng.bytes(length)
        elif kind == 2:
            del out[at : at + length]
        elif kind == 3:
            out[at:at] = rng.bytes(length)
        elif kind == 4:
            out[at:at] = out[at : at + length]
        elif kind == 5:
            out[at : at + length] = rng.choice([b"\0", b"\xff"]) * length
        elif rng.random() < 0.2:
            del out[at:]
    return bytes(out)


def samples(folder: Path) -> dict[str, tuple[bytes, Callable[[Path], object]]]:
    """A valid file in every format, and what reads it."""
    rng = np.random.default_rng(3)
    images, y = rng.integers(0, 256, (5, 5, 3, 6), dtype=np.uint8), (np.arange(6) % 10)[:, None]
    path, made = folder / "valid", {}
    who = {"client_train": np.array(list("abcabcabcabc")), "client_test": np.array(list("abcabc"))}
    for name, save in (("npz", np.savez), ("npz packed", np.savez_compressed)):
        with open(path, "wb") as stream:
            save(stream, **arrays(), **who)
        made[name] = (path.read_bytes(), load_npz)
    for name, compress in (("mat", False), ("mat packed", True)):
        with open(path, "wb") as stream:
            savemat(stream, {"X": images, "y": y}, do_compression=compress)
        made[name] = (path.read_bytes(), read_matlab_digits)
    made["idx"] = (struct.pack(">BBBB3I", 0, 0, 8, 3, 2, 3, 4) + bytes(range(24)), lambda path: read_idx(path, 3))
    for name, raw in batches().items():
        made[f"cifar {name}"] = (raw, lambda path: read_batch(path, "labels"))
    for kind in ("PNG", "JPEG"):
        Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(path, kind)
        made[kind] = (path.read_bytes(), read_picture)
    lines = "\n".join("3 " + " ".join(f"{k + 1}:0.5" for k in range(256)) for _ in range(3))
    made["usps"] = (bz2.compress(lines.encode()), read_usps)
    made["text"] = ("ä.png 3\nb.png 4\n".encode(), lambda path: read_text(path, "a list"))
    with pd.ExcelWriter(path, engine="openpyxl") as writer:
        pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}).to_excel(writer, sheet_name="S", index=False)
    made["xlsx"] = (path.read_bytes(), lambda path: read_sheet(path, "S", 0, ["a", "b"]))
    return made


FORMATS = [
    "npz", "npz packed", "mat", "mat packed", "idx", *(f"cifar {kind}" for kind in batches()), "PNG", "JPEG", "usps",
    "text", "xlsx",
]  # fmt: skip


def damage(kind: str, cases: int, seed: int, folder: Path) -> tuple[int, int]:
    """How many damaged files were read and refused; anything else than these two is raised, warnings too."""
    raw, read = samples(folder)[kind]
    path, rng, outcomes = folder / "damaged", np.random.default_rng([seed, FORMATS.index(kind)]), [0, 0]
    path.write_bytes(raw)
    read(path)
    for _ in range(cases):
        path.write_bytes(mutated(raw, rng))
        try:
            read(path)
            said = ""
        except UserError as error:
            said = str(error)
        assert said.isprintable()
        outcomes[bool(said)] += 1
    return outcomes[0], outcomes[1]


@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_files_are_read_or_refused_and_nothing_else(kind: str, tmp_path: Path) -> None:
    _, refusals = damage(kind, 300 if kind != "xlsx" else 40, 0, tmp_path)
    assert refusals > 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_many_damaged_files_are_read_or_refused_and_nothing_else(kind: str, tmp_path: Path) -> None:
    damage(kind, 5000 if kind != "xlsx" else 500, 1, tmp_path)
