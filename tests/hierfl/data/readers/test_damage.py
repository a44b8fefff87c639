"""Damage of any kind, in any format, by luck: read or refused in one line, and nothing else."""

from __future__ import annotations

import bz2
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy.io import savemat
from support.foreign_files import arrays, batches

from hierfl import UserError
from hierfl.data.datasets.svhn_usps import read_usps
from hierfl.data.npz import load_npz
from hierfl.data.readers.cifar import read_batch
from hierfl.data.readers.contents import read_picture, read_sheet, read_text
from hierfl.data.readers.idx import read_idx
from hierfl.data.readers.matlab_digits import read_matlab_digits


def mutated(raw: bytes, rng: np.random.Generator) -> bytes:
    """One to eight damages: bytes changed, cut out, put in, repeated, zeroed; or the end lost."""
    out = bytearray(raw)
    for _ in range(int(rng.integers(1, 9))):
        # Half of them near the start, where headers are.
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
            message = ""
        except UserError as error:
            message = str(error)
        assert message.isprintable()
        outcomes[bool(message)] += 1
    return outcomes[0], outcomes[1]


@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_files_are_read_or_refused_and_nothing_else(kind: str, tmp_path: Path) -> None:
    _, refusals = damage(kind, 300 if kind != "xlsx" else 40, 0, tmp_path)
    assert refusals > 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_many_damaged_files_are_read_or_refused_and_nothing_else(kind: str, tmp_path: Path) -> None:
    cases = 5000 if kind != "xlsx" else 500
    whole, refused = damage(kind, cases, 1, tmp_path)
    assert whole + refused == cases
    assert refused > cases // 100
