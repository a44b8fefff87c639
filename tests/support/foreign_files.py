"""Files as others write them, and how a refusal is told."""

from __future__ import annotations

import pickle
import struct

import numpy as np
import pytest

from hierfl import UserError


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    """What a refusal says, which can be printed in one line."""
    text = str(error.value)
    assert text.isprintable()
    assert len(text) < 500
    return text


def arrays() -> dict[str, np.ndarray]:
    """Of an .npz file that can be used."""
    return {
        "x_train": np.arange(36.0).reshape(12, 3), "y_train": np.arange(12) % 3,
        "x_test": np.zeros((6, 3)), "y_test": np.arange(6) % 3,
    }  # fmt: skip


#: of a batch of CIFAR
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
    """One batch of CIFAR as every protocol writes it."""
    content = {"batch_label": "one", "labels": list(range(7)), "data": IMAGES, "filenames": ["a"] * 7}
    made = {f"protocol {k}": pickle.dumps(content, protocol=k) for k in (2, 3, 4, 5)}
    return {**made, "python 2": python2(IMAGES, list(range(7)))}
