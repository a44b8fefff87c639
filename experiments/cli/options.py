"""Options of the command line: those of a run, made from their declarations, and those that several commands share."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from hierfl.errors import UserError
from hierfl.files import user_path

from ..config import flag, kinds, names_of, options


def _offline(context: typer.Context, wanted: bool) -> bool:
    """Forbids downloads while the command runs."""
    if wanted:
        from hierfl.data.datasets.torchvision_layout import offline

        context.with_resource(offline())
    return wanted


Offline = Annotated[
    bool,
    typer.Option("--offline", callback=_offline, help="Never download a data set (as with HIERFL_OFFLINE=1)."),
]
TrustCode = Annotated[
    bool, typer.Option("--trust-code", help="Run the method's Python file though it was never run on this machine.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and print no table.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Value of a setting of the method (see hierfl methods NAME); repeatable."
    ),
]


def path_argument(metavar: str, help: str) -> Any:
    """A path that a command is about."""
    return typer.Argument(parser=user_path, metavar=metavar, help=help)


def path_option(metavar: str, help: str) -> Any:
    """An option that takes a path."""
    return typer.Option(parser=user_path, metavar=metavar, help=help)


def run_option(name: str, default: str = "") -> Any:
    """An option of a run as typer wants it: its type, and all that is declared of it; ``default`` is the command's."""
    declared = options()[name]
    text = f"{declared.help.partition(' [default:')[0]} [default: {default}]" if default else declared.help
    kind: Any = Path if declared.path else kinds()[name]
    parser = user_path if declared.path else None
    option = typer.Option(*(declared.flags or (flag(name),)), metavar=declared.metavar, help=text, parser=parser)
    return Annotated[kind | None, option]


def with_run_options(*names: str, **defaults: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options of a run: a function with ``**given`` gets those that were given.

    Args:
        names: of the options, or of a command that is declared to have them.
        defaults: what the help of an option says of its default, where the command has another than ``hierfl run``.
    """
    wanted = tuple(name for group_or_name in names for name in (names_of(group_or_name) or (group_or_name,)))

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = typing.get_type_hints(command, include_extras=True)
        own = inspect.signature(command).parameters.values()
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            p.replace(kind=keyword, annotation=hints[p.name])
            for p in own
            if p.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        parameters += [
            inspect.Parameter(n, keyword, default=None, annotation=run_option(n, defaults.get(n, ""))) for n in wanted
        ]

        def called(**values: Any) -> None:
            given = {name: value for name in wanted if (value := values.pop(name)) is not None}
            command(**values, **given)

        called.__name__, called.__doc__, called.__module__ = command.__name__, command.__doc__, command.__module__
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {p.name: p.annotation for p in parameters}
        return called

    return decorate


def decimals(option: str, text: str) -> list[float]:
    """Numbers that are given as 0.1,1,10."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise UserError(f"{option} takes numbers, as in 0.1,1,10; not {text!r}") from error


def whole_numbers(option: str, text: str) -> list[int]:
    """Whole numbers that are given as 50,100."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UserError(f"{option} takes whole numbers, as in 50,100; not {text!r}") from error


def chosen(given: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Some of the options that were given."""
    return {name: given[name] for name in names if name in given}
