"""How a remedy is written in a message: as options of a command, or as a call in Python."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .options import join_words

#: how the options of a reading are called on the command line
FLAGS = {"types": "type"}


def option_flags(reading: Mapping[str, Any]) -> list[str]:
    """The options of a reading that were said, as the command line calls them."""
    return [f"--{FLAGS.get(name, name)}" for name in reading]


@dataclass(frozen=True)
class Remedies:
    """Writes what a user can say of a table.

    Attributes:
        python: the beginning of a call in Python, up to its options; empty for a command line.
        row: what a row of the table is called: "line" of a file, "row" of a frame.
        study: whether columns are declared in study.toml.
    """

    python: str = ""
    row: str = "line"
    study: bool = False

    def say(self, **reading: Any) -> str:
        """Arguments of :class:`.options.Reading` as the user has to write them."""
        if self.study and (types := reading.pop("types", None)):
            ((column, kind),) = types.items()
            levels = f'kind = "category" of columns.{column} in study.toml'
            if kind == "category":
                return levels
            return f"{self.say(**reading)} and plain numbers" if reading else "plain numbers in the file"
        if self.python:
            return f"{self.python}{', '.join(f'{name}={_tuple_as_list(value)!r}' for name, value in reading.items())})"
        return " ".join(
            f"--{FLAGS.get(name, name)} {shlex.quote(text)}"
            for name, value in reading.items()
            for text in _texts(value)
        )


def _tuple_as_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _texts(value: Any) -> list[str]:
    """One value of an option, or one for each column."""
    if isinstance(value, Mapping):
        return [f"{column}={'<'.join(v) if isinstance(v, tuple | list) else v}" for column, v in value.items()]
    return [join_words(value) if isinstance(value, tuple | list) else {"\t": "tab"}.get(value, str(value))]


def either(ways: Sequence[str]) -> str:
    """Ways of which one is taken, in words."""
    return " or ".join([", ".join(ways[:-1]), ways[-1]] if len(ways) > 1 else ways)


OPTIONS = Remedies()
SITE = Remedies(study=True)
FILE = Remedies("hierfl.read_table(path, ")
FRAME = Remedies("df = hierfl.read_table(df, ", "row")
