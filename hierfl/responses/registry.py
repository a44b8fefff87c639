"""Which responses there are, read from their sources: nothing is imported, so that a list of them is there at once.

A response is a subclass of :class:`.base.Response` with a ``name`` in a file of this room. It says on itself, in plain
values, what :class:`Entry` has. Help of the command line, the families that a formula may have, settings and the list
of the documentation follow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..discovery import stated
from ..errors import UserError, unknown

if TYPE_CHECKING:
    from .base import Response


@dataclass(frozen=True)
class Entry:
    """A response, as its class describes it.

    Attributes:
        module, cls: where the class is.
        name, about, ratio, order, columns, settings, ordered, closed_form, formulas: see :class:`.base.Response`.
    """

    module: str
    cls: str
    name: str
    about: str
    ratio: str = ""
    order: int = 100
    columns: tuple[str, ...] = ()
    settings: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    ordered: bool = False
    closed_form: bool = False
    formulas: Mapping[str, str] = field(default_factory=dict)


#: what a class says of itself in plain values
STATED = tuple(f.name for f in fields(Entry) if f.name not in ("module", "cls"))


def read_room(folder: Path) -> dict[str, Entry]:
    """The responses in a folder's files by name, in order.

    Raises:
        TypeError: for two of one name, or one that does not say what it is about.
    """
    entries: dict[str, Entry] = {}
    for path in sorted(folder.glob("*.py")):
        for cls, values in stated(path, STATED):
            if not values.get("name"):  # what others share
                continue
            if "about" not in values or values["name"] in entries:
                raise TypeError(f"{path.name}: {cls} has a name of its own, and says what it is about")
            entries[values["name"]] = Entry(path.stem, cls, **values)
    return dict(sorted(entries.items(), key=lambda item: item[1].order))


#: every response, in the order in which it is listed
RESPONSES = read_room(Path(__file__).parent)


def response_class(name: str) -> type[Response]:
    """The class of a response.

    Raises:
        UserError: for an unknown name.
    """
    if name not in [*RESPONSES]:  # which may be anything
        raise unknown("family", name, RESPONSES)
    entry = RESPONSES[name]
    response: type[Response] = getattr(import_module(f"hierfl.responses.{entry.module}"), entry.cls)
    return response


def response_of(design: Any, settings: Any) -> Response:
    """The response of a design.

    Args:
        design: a :class:`~hierfl.data.formula.design.Design`.
        settings: of the method.

    Raises:
        UserError: for a setting of another response.
    """
    for entry in RESPONSES.values():
        for name, (_, belongs) in entry.settings.items():
            if entry.name != design.family and getattr(settings, name):
                raise UserError(f"{belongs}, not of a {design.family} one")
    response = response_class(design.family).from_design(design, settings)
    if not design.own:
        return response
    from .formulas import with_formulas

    return with_formulas(response, design.own)


def check_columns(name: str, columns: Collection[str]) -> None:
    """Refuses columns that a response does not have.

    Args:
        name: of the response.
        columns: what rows have beside effects.

    Raises:
        UserError: for standard errors, or events, of a response without them; for an unknown one.
    """
    own = response_class(name).columns
    if "known" in columns and "known" not in own:
        having = spoken(entry.name for entry in RESPONSES.values() if "known" in entry.columns)
        raise UserError(f"known standard errors belong to a {having} response, not a {name} one")
    if "precision" in columns and "precision" not in own:
        having = spoken(entry.name for entry in RESPONSES.values() if "precision" in entry.columns)
        raise UserError(f"precision weights belong to a {having} response, not a {name} one: weights= counts rows")
    if "precision" in columns and "known" in columns:
        raise UserError("known standard errors have their rows' precisions in them: say one of the two")
    if "event" in columns and "event" not in own:
        raise UserError(f"events belong to a time until something happens, not a {name} response")


def check_formulas(name: str, own: Collection[str], columns: Collection[str]) -> None:
    """Refuses formulas of numbers that a response does not have.

    Args:
        name: of the response.
        own: what there are formulas of, keys of :attr:`.base.Response.formulas`.
        columns: what rows have beside effects.

    Raises:
        UserError: for one.
    """
    for what in own:
        if what not in RESPONSES[name].formulas:
            having = spoken(entry.name for entry in RESPONSES.values() if what in entry.formulas)
            raise UserError(f"a formula of {what} belongs to a {having} response, not a {name} one")
    if own and "known" in columns:
        raise UserError("known standard errors leave no formula of dispersion anything to say")


def spoken(names: Iterable[str]) -> str:
    """Names as a sentence lists them: "a, b or c"."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last
