"""CIFAR's pickles: read as pickle reads them, and nothing in them is executed."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.foreign_files import IMAGES, batches, one_line, python2

from hierfl import UserError
from hierfl.data.readers.cifar import read_batch, read_names


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
