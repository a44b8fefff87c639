"""Data of one's own in .npz files, and how the command line takes them."""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.commands import Call
from support.drawing import one_figure

from hierfl import Federation, UserError
from hierfl.data.datasets.registry import load
from hierfl.data.npz import load_npz


def arrays() -> dict[str, np.ndarray]:
    return {
        "x_train": np.zeros((12, 3)), "y_train": np.arange(12) % 3,
        "x_test": np.zeros((6, 3)), "y_test": np.arange(6) % 3,
    }  # fmt: skip


def test_npz_round_trip(tmp_path: Path) -> None:
    who = np.array(list("aabbaabbaabb"))
    np.savez(tmp_path / "mine.npz", **arrays(), client_train=who, client_test=who[:6])
    fed = Federation.from_npz(tmp_path / "mine.npz")
    assert list(fed.ids) == ["a", "b"]
    assert fed.sizes() == [6, 6]
    assert load("mine", tmp_path).name == "mine"  # ROOT/NAME.npz comes first, whatever the name
    with pytest.raises(UserError, match="2 clients of its own, not 5"):
        Federation.from_npz(tmp_path / "mine.npz", clients=5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y_test": None}, "lacks y_test"),
        ({"x_train": np.array([{}] * 12, dtype=object)}, "array x_train cannot be read without pickle"),
        ({"y_train": np.arange(11) % 3}, "y_train has shape"),
        ({"x_test": np.zeros((6, 4))}, "do not fit together"),
        ({"x_train": np.full((12, 3), np.nan)}, "36 values that are NaN"),
        ({"y_train": np.arange(12) % 3 - 1}, "whole numbers from 0"),
        ({"y_train": (np.arange(12) % 3) * 2}, "lacks 1"),
        ({"y_test": np.arange(6)}, "label 5, out of the range 0..2"),
        ({"y_train": np.full(12, np.inf)}, "NaN or infinite"),
        ({"y_train": np.array(["a"] * 12)}, "not numbers"),
        ({"x_train": np.array([["a"] * 3] * 12)}, "not numbers"),
        ({"x_train": np.zeros(12), "x_test": np.zeros(6)}, "the first dimension counts examples"),
        ({"fine_train": np.zeros(12)}, "come in pairs"),
        ({"x_train": np.zeros((0, 3)), "y_train": np.zeros(0)}, "x_train is empty"),
    ],
)
def test_npz_files_that_cannot_be_used_are_refused_in_one_line(change: dict, words: str, tmp_path: Path) -> None:
    made = {k: v for k, v in {**arrays(), **change}.items() if v is not None}
    np.savez(tmp_path / "mine.npz", **made)
    with pytest.raises(UserError, match=words) as error:
        load_npz(tmp_path / "mine.npz")
    assert "\n" not in str(error.value)


def test_files_that_are_no_npz_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("hello")
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    np.savez(tmp_path / "whole.npz", **arrays())
    half = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "half.npz").write_bytes(half[: len(half) // 2])
    for name in ("text", "one", "half"):
        with pytest.raises(UserError, match=r"no \.npz file"):
            load_npz(tmp_path / f"{name}.npz")
    with pytest.raises(UserError, match="no file"):
        load_npz(tmp_path / "absent.npz")


def test_what_is_no_file_to_be_read_is_one_line_and_exit_code_2(hierfl: Call, tmp_path: Path) -> None:
    os.mkfifo("pipe.npz")
    Path("loop.npz").symlink_to("loop.npz")
    Path("folder.npz").mkdir()
    np.savez("data.npz", **arrays())
    raw = bytearray(Path("data.npz").read_bytes())
    raw[raw.index(b"PK\1\2") + 8] |= 1
    Path("encrypted.npz").write_bytes(raw)
    with zipfile.ZipFile("bomb.npz", "w", zipfile.ZIP_DEFLATED) as file:
        head = b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999, 3)}\n"
        for name in ("x_train", "y_train", "x_test", "y_test"):
            file.writestr(f"{name}.npy", b"\x93NUMPY\1\0" + len(head).to_bytes(2, "little") + head + bytes(5000))
    for name, words in (
        ("pipe.npz", "is a named pipe, not a regular file"), ("loop.npz", "[Ss]ymlink loop|circle"),
        ("folder.npz", "is a directory|no folder of data"), ("lone\udc80.npz", "not valid UTF-8"),
        ("encrypted.npz", "is encrypted"),
        ("bomb.npz", "GiB, more than"), ("absent.npz", "no file"), ("~nobody-of-this-name/x.npz", "home"),
    ):  # fmt: skip
        for options in (("--data", name), ("--data-root", ".", "--data", name.removesuffix(".npz"))):
            if name.startswith("~") and len(options) == 4:
                continue
            code, out, err = hierfl("run", "fedavg", *options, "-J", 2, "-T", 1, "--out", "run")
            assert (code, out) == (2, ""), (name, err)
            assert re.fullmatch(r"(loading data[^\n]*\n)?error: [^\n]+\n", err), err
            if name != "absent.npz" and not name.startswith("lone"):
                assert re.search(words, err), err
            assert not Path("run").exists()


def test_a_home_directory_is_expanded(hierfl: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    np.savez(tmp_path / "home" / "mine.npz", **arrays())
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    common = ("-J", 2, "--split", "iid", "-T", 1, "--quiet", "--out")
    with one_figure():
        assert hierfl("run", "fedavg", "--data=~/mine.npz", *common, "a")[0] == 0
        assert hierfl("run", "fedavg", "--data", "mine", "--data-root=~", *common, "b")[0] == 0
    assert f'data_root = "{tmp_path}/home"' in Path("b/config.toml").read_text()
    assert Federation.from_npz("~/mine.npz", clients=2, split="iid").clients == 2


def test_rows_of_bytes_have_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for kind, lines in ((np.uint8, 1), (np.int64, 0)):
        x = np.arange(24, dtype=kind).reshape(8, 3)
        np.savez(tmp_path / "rows.npz", x_train=x, y_train=np.arange(8) % 2, x_test=x, y_test=np.arange(8) % 2)
        caplog.clear()
        load_npz(tmp_path / "rows.npz")
        assert caplog.text.count("uint8 rows are read as pixels from 0 to 255; save other numbers, or ids, as") == lines


def test_arrays_that_are_not_used_have_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    np.savez(tmp_path / "w.npz", **arrays(), weights_train=np.ones(12))
    load_npz(tmp_path / "w.npz")
    assert caplog.messages == [
        "w.npz: arrays that are not used: weights_train; known: x_train, y_train, x_test, y_test, fine_train, "
        "fine_test, client_train, client_test"
    ]
