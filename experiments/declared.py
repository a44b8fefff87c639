"""What is declared of an entry of a run's configuration (:mod:`.config`)."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field
from typing import Any, Literal

#: before the name of data that a fit in Python has had
PYTHON = "python:"
#: what a network's response may be
TASKS = ("classification", "regression")


@dataclass(frozen=True)
class Option:
    """What there is to know of an entry of the configuration, beside its type and its default.

    Attributes:
        help: what it does, for the command line; empty for what is recorded and cannot be said.
        commands: which commands have it.
        flags: on the command line, where they are not ``--name``.
        metavar: of its value in the help.
        path: whether the command line takes a path.
        data: of which data it can be said; "rows" is of a table whose columns are a network's inputs.
        choices: its values; empty for any.
        fit: whether it is one of :class:`hierfl.inference.options.Options`.
        identity: whether runs that differ in it are runs of different settings.
        same_data: whether runs that differ in it have other data, or other splits of them.
        moves: whether it may be said of a run that goes on.
        newer: whether it may lack in config.toml: runs from before it was there did what the default says.
    """

    help: str = ""
    commands: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    path: bool = False
    data: Literal["any", "arrays", "tables", "rows"] = "any"
    choices: tuple[str, ...] = ()
    fit: bool = False
    identity: bool = True
    same_data: bool = False
    moves: bool = False
    newer: bool = False


def option(help: str, default: Any = MISSING, *, commands: tuple[str, ...] = ("run",), **declared: Any) -> Any:
    """An option of the command line; one without a default is usual for the data (see configure)."""
    return field(default=default, metadata={"option": Option(help, commands, **declared)})


def recorded(default: Any = MISSING, **declared: Any) -> Any:
    """An entry that is not said but found out."""
    return field(default=default, metadata={"option": Option(**declared)})


def of_validation() -> Any:
    """The option that says of what validation data are a fraction."""
    return option(
        "What --validation-fraction divides: classes (each class of which a client has at least ten examples) or "
        "clients (all rows of each client of at least three rows). [default: classes]", "classes",
        commands=("run", "ablate", "tune", "search"), choices=("classes", "clients"), metavar="classes|clients",
        data="arrays", same_data=True, newer=True,
    )  # fmt: skip


def of_network(help: str, metavar: str, *, path: bool = False, same_data: bool = False) -> Any:
    """An option of networks and their inputs that earlier runs lack; a file may have moved since."""
    declared: dict[str, Any] = {"metavar": metavar, "path": path, "moves": path, "same_data": same_data}
    return option(help, None, commands=("run", "ablate", "tune", "search"), data="arrays", newer=True, **declared)


def of_watching(help: str, metavar: str) -> Any:
    """An option of how a run is watched, which changes nothing of it and may be said of a run that goes on."""
    return option(help, None, metavar=metavar, identity=False, moves=True, newer=True)


def of_table(help: str, metavar: str = "COLUMN", **declared: Any) -> Any:
    """An option of tables that says what is read of them; earlier runs may lack it."""
    return option(help, None, metavar=metavar, data="tables", same_data=True, newer=True, **declared)


def of_rows(help: str, metavar: str = "COLUMN", *, tasks: bool = False) -> Any:
    """An option of tables whose columns are a network's inputs; earlier runs may lack it."""
    declared: dict[str, Any] = {"metavar": metavar, "data": "rows", "same_data": True, "newer": True}
    declared |= {"metavar": "|".join(TASKS), "choices": TASKS} if tasks else {}
    return option(help, None, commands=("run", "ablate", "tune", "search"), **declared)


def flag(name: str) -> str:
    """An option as it is written on the command line."""
    return f"--{name.replace('_', '-')}"
