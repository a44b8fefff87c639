"""Figures of small runs: most of what such a run takes is drawing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hierfl.plots import saving


@contextmanager
def one_figure() -> Iterator[None]:
    """The first figure of a folder stands for all of them."""
    every = saving.save_all

    def first(folder: Path, drawn: dict[str, Callable[[Any], Any]], *rest: str) -> list[Path]:
        return every(folder, dict([*drawn.items()][:1]), *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saving, "save_all", first)
        yield
