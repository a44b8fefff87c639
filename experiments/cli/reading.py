"""Options of the command line that say how a table is read."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, get_args

import typer

from hierfl.data.formula.missing import Missing
from hierfl.data.reading.options import OF_FILES, Reading, column_values, split_words
from hierfl.errors import UserError


def _many(metavar: str, help: str, *flags: str) -> Any:
    return Annotated[list[str] | None, typer.Option(*flags, metavar=metavar, help=f"{help}; repeatable.")]


#: what --na says
MISSING = "Entries of a table that are missing values, such as .,-,missing,-999, beside empty ones"
#: what is said of a file, and may differ between the sites of a study
FILE_OPTIONS: Mapping[str, Any] = {
    "sep": Annotated[
        str | None,
        typer.Option(
            metavar="CHARACTER",
            help="Separator of columns, also by name: comma, semicolon, tab, pipe, space. [default: detected]",
        ),
    ],
    "decimal": Annotated[
        str | None, typer.Option(metavar=".|,", help="Decimal mark of a table's numbers. [default: .]")
    ],
    "thousands": Annotated[
        str | None,
        typer.Option(
            metavar="CHARACTER", help="Separator of thousands, also by name: space, apostrophe. [default: none]"
        ),
    ],
    "encoding": Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Encoding of a table's text, such as latin-1. [default: utf-8, or detected]"),
    ],
    "sheet": Annotated[
        str | None, typer.Option(metavar="NAME", help="Sheet of an .xlsx table. [default: the only one]")
    ],
    "missing": _many(
        "WORDS",
        f"{MISSING}; drop, or refuse, rows that lack a value [default: refuse]",
        "--na",
    ),
}  # fmt: skip
#: what is said of columns; a study's sites agree on it
COLUMN_OPTIONS: Mapping[str, Any] = {
    "type": _many("COLUMN=TYPE", "Type of a table's column: number, percent, date, date-dmy, date-mdy or category"),
    "order": _many("COLUMN=LEVEL<LEVEL...", "Levels of a category in order, as in children=0<1<2<3+"),
    "reference": _many("COLUMN=LEVEL", "Level of a category that the others are compared with"),
}


def with_reading(
    *, columns: Collection[str] = tuple(COLUMN_OPTIONS), drop: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options of reading a table.

    The command gets ``reading``, a table of :class:`~hierfl.data.reading.options.Reading` with what was said, if any
    was; and ``na`` where it was said what becomes of rows that lack a value.

    Args:
        columns: which of types, orders and references the command takes.
        drop: whether it is said there what becomes of rows that lack a value.
    """
    wanted = {**FILE_OPTIONS, **{name: COLUMN_OPTIONS[name] for name in columns}}
    if not drop:
        wanted["missing"] = _many("WORDS", MISSING, "--na")

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command).parameters.values()
        hints = typing.get_type_hints(command, include_extras=True)
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [p.replace(kind=keyword, annotation=hints[p.name]) for p in own if p.name != "reading"]
        parameters += [inspect.Parameter(name, keyword, default=None, annotation=kind) for name, kind in wanted.items()]

        @functools.wraps(command)
        def called(**values: Any) -> None:
            given = {name: value for name in wanted if (value := values.pop(name)) is not None}
            command(**values, **reading_options(given, drop=drop))

        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {p.name: p.annotation for p in parameters}
        return called

    return decorate


def flag_of(name: str) -> str:
    """An option of reading as the command line calls it."""
    return "--na" if name == "missing" else f"--{name}"


def reading_options(given: Mapping[str, Any], *, drop: bool = True) -> dict[str, Any]:
    """The entries "reading" and "na" of a configuration, as far as anything was said of them.

    Args:
        given: the options that were given.
        drop: whether it may be said what becomes of rows that lack a value.

    Raises:
        UserError: for options that contradict each other, or say nothing.
    """
    if empty := [
        flag_of(name) for name, value in given.items() if value == "" or (isinstance(value, list) and "" in value)
    ]:
        raise UserError(f"{empty[0]} is empty; leave it out for what is usual")
    words = [word for text in given.get("missing", ()) for word in split_words(text)]
    rules = {word for word in words if word in get_args(Missing)}
    if len(rules) > 1:
        raise UserError("--na says both refuse and drop: say one")
    if rules and not drop:
        raise UserError(
            f"--na {min(rules)} is said of a fit (of a study, in study.toml); here --na says how missing values look"
        )
    result: dict[str, Any] = {"na": min(rules)} if rules else {}
    declared = {name: given[name] for name in OF_FILES if name in given}
    orders = column_values("--order", given.get("order", ()))
    reading = Reading(
        **declared, na=tuple(dict.fromkeys(word for word in words if word not in rules)),
        types=column_values("--type", given.get("type", ())),  # type: ignore[arg-type]
        order={column: tuple(part.strip() for part in text.split("<")) for column, text in orders.items()},
        reference=column_values("--reference", given.get("reference", ())),
    )  # fmt: skip
    return {**result, "reading": table} if (table := reading.as_table()) else result
