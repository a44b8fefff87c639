"""What data and methods are called in a table that is shown: files by their name, without the folders above them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

KEYS = ("data", "method", "better", "worse")


def labels(names: Iterable[str]) -> dict[str, str]:
    """Files by as few of their folders as tell them apart; other names as they are."""
    paths = [PurePath(name) for name in dict.fromkeys(names) if PurePath(name).is_absolute()]
    shown: dict[str, str] = {}
    for path in paths:
        parts = next(
            n for n in range(1, len(path.parts) + 1)
            if sum(other.parts[-n:] == path.parts[-n:] for other in paths) == 1
        )  # fmt: skip
        shown[str(path)] = "/".join(path.parts[-parts:])
    return shown


def labelled(rows: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Rows, or differences, with data and methods so called."""
    return [{**row, **{k: labels.get(row[k], row[k]) for k in KEYS if k in row}} for row in rows]


def shown_name(name: str) -> str:
    """One of them alone, as in a figure."""
    return PurePath(name).name if PurePath(name).is_absolute() else name
