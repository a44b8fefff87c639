"""Figures of small runs: most of what such a run takes is drawing."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hierfl.files import write_whole
from hierfl.plots import saving
from hierfl.plots.legible import new_figure
from hierfl.plots.style import styled


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def blank(width: int, height: int) -> bytes:
    """A white picture of that size, as PNG of one bit a pixel."""
    rows = (b"\0" + b"\xff" * -(-width // 8)) * height
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + _chunk(b"IDAT", zlib.compress(rows, 1)) + _chunk(b"IEND", b"")


def _save_blank(plt: Any, figure: Any, path: Path) -> Path:
    write_whole(path, blank(*map(int, figure.get_size_inches() * figure.dpi)))
    plt.close(figure)
    return path


@contextmanager
def unrendered() -> Iterator[None]:
    """Figures are drawn, but neither laid out nor made pixels of, which takes most of the time: files are white."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saving, "save", _save_blank)
        yield


@contextmanager
def one_figure() -> Iterator[None]:
    """The first figure of a folder stands for all of them and for their overview, and is not rendered."""

    def first(
        folder: Path, drawn: dict[str, Callable[[Any], Any]], title: str, together: str = "overview"
    ) -> list[Path]:
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        with styled() as plt:
            for name, draw in [*drawn.items()][:1]:
                figure, ax = new_figure(plt)
                draw(ax)
                paths.append(_save_blank(plt, figure, folder / f"{name}.png"))
        whole = folder / f"{together}.png"
        write_whole(whole, blank(8, 8))
        return [*paths, whole]

    with unrendered(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(saving, "save_all", first)
        yield
