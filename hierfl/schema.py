"""What our own files must hold: one description each, and one line for a file that is damaged."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from .errors import UserError


@dataclass(frozen=True)
class Number:
    """A number; no bool is one.

    Attributes:
        kind: int, or float for any.
        least, most: the range; None for none. A number with a range is finite.
    """

    kind: type[int] | type[float] = float
    least: float | None = None
    most: float | None = None

    def __contains__(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.kind is int else (int, float)):
            return False
        if self.least is None and self.most is None:
            return True
        inside = (self.least is None or value >= self.least) and (self.most is None or value <= self.most)
        return math.isfinite(value) and inside


class AnyOf(tuple[Any, ...]):
    """One of several kinds."""

    def __new__(cls, *kinds: Any) -> AnyOf:
        """Creates the union of the kinds."""
        return super().__new__(cls, kinds)


#: a type, None, a :class:`Number`, :class:`AnyOf`, a list [kind of its members], or a table {name: kind}, in which
#: "name?" may be left out and "*" is the kind of every other name; without it others may have any
Kind: TypeAlias = Any
Schema: TypeAlias = Mapping[str, Kind]


def check(value: Any, kind: Kind, path: Path, name: str = "") -> None:
    """Checks what was read from a file.

    Args:
        value: what was read.
        kind: what it must be.
        path: of the file.
        name: where in it the value is.

    Raises:
        UserError: naming the first position that is damaged.
    """
    if not _is(value, kind):
        what = "is missing" if value is _MISSING else f"is {_truncated(value)}"
        raise UserError(f"{path} is damaged: {name or 'it'} {what}")
    if isinstance(kind, AnyOf):
        kind = next(candidate for candidate in kind if _is(value, candidate))
    if isinstance(kind, Mapping):
        for key, inner in kind.items():
            name_of_entry = key.removesuffix("?")
            if key != "*" and (name_of_entry in value or name_of_entry == key):
                check(value.get(name_of_entry, _MISSING), inner, path, f"{name}.{name_of_entry}".lstrip("."))
        if "*" in kind:
            named = {key.removesuffix("?") for key in kind}
            for other in value.keys() - named:
                check(value[other], kind["*"], path, f"{name}.{other}".lstrip("."))
    elif isinstance(kind, list):
        for position, member in enumerate(value):
            check(member, kind[0], path, f"{name}[{position}]")


_MISSING = object()


def _is(value: Any, kind: Kind) -> bool:
    """Whether a value is of a kind, its members left out."""
    if isinstance(kind, AnyOf):
        return any(_is(value, candidate) for candidate in kind)
    if isinstance(kind, Number):
        return value in kind
    if isinstance(kind, Mapping):
        return isinstance(value, dict)
    if isinstance(kind, list):
        return isinstance(value, list)
    return value is None if kind is None else isinstance(value, kind)


def _truncated(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def read_json(path: Path, kind: Kind = None) -> dict[str, Any]:
    """A table from a json file of ours.

    Args:
        path: of the file.
        kind: what it must hold; None for any table.

    Raises:
        UserError: if it is damaged.
    """
    try:
        table = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged, or no json: {error}") from error
    if not isinstance(table, dict):
        raise UserError(f"{path} is damaged: it holds no table")
    if kind is not None:
        check(table, kind, path)
    return table


def read_toml(path: Path, kind: Kind) -> dict[str, Any]:
    """A table from a toml file of ours; see :func:`read_json`."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}") from error
    check(table, kind, path)
    return table
