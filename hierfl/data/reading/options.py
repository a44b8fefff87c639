"""How a table is read: what its file does not say of itself."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ...errors import UserError, unknown

Type = Literal["number", "percent", "date", "date-dmy", "date-mdy", "category"]
#: separators of columns that have names
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", r"\t": "\t", "pipe": "|", "space": " "}
#: separators of thousands that have names
THOUSANDS = {"space": " ", "apostrophe": "'", "comma": ",", "point": "."}

#: options that describe how a file is written
OF_FILES = ("sep", "decimal", "thousands", "encoding", "sheet")


@dataclass(frozen=True)
class Reading:
    """How a table is read; what is empty is found out.

    Attributes:
        sep: the separator of columns: one character, or comma, semicolon, tab, pipe, space.
        decimal: the decimal mark, ``.`` or ``,``.
        thousands: the separator of thousands: ``,``, ``.``, ``'``, or a space (also by name).
        encoding: of the text, such as latin-1.
        sheet: of an .xlsx file.
        na: entries that are missing values, beside empty ones and those that pandas takes for missing.
        types: {column: "number", "percent", "date", "date-dmy", "date-mdy" or "category"}.
        order: {column: its levels from the lowest}; such a column is an ordered category.
        reference: {column: the level that the others are compared with}; such a column is a category.
    """

    sep: str = ""
    decimal: str = ""
    thousands: str = ""
    encoding: str = ""
    sheet: str = ""
    na: tuple[str, ...] = ()
    types: Mapping[str, Type] = field(default_factory=dict)
    order: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reference: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.na, str | list | tuple):
            raise UserError(f"na is a list of entries that are missing values, not {self.na!r}")
        object.__setattr__(self, "na", (self.na,) if isinstance(self.na, str) else tuple(map(str, self.na)))
        for name in OF_FILES:
            if not isinstance(getattr(self, name), str):
                raise UserError(f"{name} is text, not {getattr(self, name)!r}")
        for name in ("types", "order", "reference"):
            if not isinstance(getattr(self, name), Mapping):
                raise UserError(f"{name} says something of columns, as {{'column': ...}}, not {getattr(self, name)!r}")
        object.__setattr__(self, "sep", SEPARATORS.get(self.sep, self.sep))
        object.__setattr__(self, "thousands", THOUSANDS.get(self.thousands, self.thousands))
        object.__setattr__(self, "order", {name: _levels(name, levels) for name, levels in self.order.items()})
        object.__setattr__(self, "reference", {name: str(level) for name, level in self.reference.items()})
        self._check()

    def _check(self) -> None:
        if self.sep and (len(self.sep) > 1 or self.sep.isalnum() or self.sep in "\n\r\"'."):
            raise UserError(f"sep is one character between columns, such as ; or tab; not {self.sep!r}")
        if self.decimal not in ("", ".", ","):
            raise UserError(f"decimal is . or , and not {self.decimal!r}")
        if self.thousands not in ("", *THOUSANDS.values()):
            raise unknown("separator of thousands", self.thousands, [*THOUSANDS, *map(repr, THOUSANDS.values())])
        if self.thousands and self.thousands == (self.decimal or "."):
            more = "; say decimal, too" if not self.decimal else ""
            raise UserError(f"decimal and thousands are both {self.thousands!r}{more}")
        if self.encoding:
            try:
                # codecs.lookup would find those that make bytes of bytes as well; of UTF-16 one byte is too few.
                with contextlib.suppress(UnicodeError):
                    b"a".decode(self.encoding)
            except LookupError as error:
                raise UserError(
                    f"encoding {self.encoding!r} is not known; utf-8, utf-16, latin-1, cp1252 are"
                ) from error
        for name, kind in self.types.items():
            if kind not in get_args(Type):
                raise unknown(f"type of column {name!r}:", kind, get_args(Type))
            if kind != "category" and name in {*self.order, *self.reference}:
                raise UserError(f"column {name!r} has levels in order or a reference, so it is a category, no {kind}")
        for name, level in self.reference.items():
            if name in self.order and self.order[name][0] != level:
                raise UserError(
                    f"column {name!r} is in order from {self.order[name][0]!r}, which is its reference; not {level!r}"
                )

    @property
    def columns(self) -> set[str]:
        """Those that something is said of."""
        return {*self.types, *self.order, *self.reference}

    def categories(self) -> set[str]:
        """Columns that are declared categories."""
        return {*self.order, *self.reference} | {name for name, kind in self.types.items() if kind == "category"}

    def as_table(self) -> dict[str, Any]:
        """The options as a table of a toml file; those that are not set are left out."""
        declared: dict[str, Any] = {name: getattr(self, name) for name in OF_FILES}
        declared |= {"na": list(self.na), "types": dict(self.types)}
        declared |= {"order": {name: list(levels) for name, levels in self.order.items()}}
        declared |= {"reference": dict(self.reference)}
        return {name: value for name, value in declared.items() if value}

    @classmethod
    def from_table(cls, table: Mapping[str, Any] | None) -> Reading:
        """Undoes :meth:`as_table`.

        Raises:
            UserError: for an entry that says nothing.
        """
        fields = cls.__dataclass_fields__
        if strange := sorted((table or {}).keys() - fields.keys()):
            raise unknown("option of reading a table", strange[0], fields)
        return cls(**(table or {}))


def _levels(column: str, levels: Sequence[object]) -> tuple[str, ...]:
    """Levels in order, checked."""
    if isinstance(levels, str) or not isinstance(levels, Sequence):
        raise UserError(f"the order of column {column!r} is a list of its levels from the lowest, not {levels!r}")
    result = tuple(map(str, levels))
    if len(result) < 2 or len(set(result)) < len(result) or "" in result:
        raise UserError(f"the order of column {column!r} is of at least two different levels, not {'<'.join(result)!r}")
    return result


def split_words(text: str) -> tuple[str, ...]:
    """Entries of a list that is written ``.,-,missing,-999``; one that has a comma is written in double quotes."""
    return tuple(word for word in next(csv.reader([text], skipinitialspace=False), []) if word)


def join_words(words: Sequence[str]) -> str:
    """Undoes :func:`split_words`."""
    return ",".join('"' + word.replace('"', '""') + '"' if "," in word or word[:1] == '"' else word for word in words)


def column_values(option: str, pairs: Sequence[str]) -> dict[str, str]:
    """What is written COLUMN=VALUE, once for each column.

    Raises:
        UserError: for another form, or a column that is named twice.
    """
    result: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (equals and name and value):
            raise UserError(f"{option} is given as COLUMN=VALUE, not {pair!r}")
        if name in result:
            raise UserError(f"{option} of column {name!r} is given twice")
        result[name] = value
    return result
