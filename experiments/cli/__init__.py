"""The command line. Nothing heavy is imported until a command needs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer
import typer.core

from hierfl.errors import RankLost, UserError
from hierfl.files import shown

from ..allocator import keep_memory
from ..messages import log_to_stderr
from .bench import bench
from .compare import ablate, ablation_table, compare
from .federate import federate
from .lists import datasets, methods
from .predict import predict
from .protocol import protocol
from .report import collect, cost, report
from .run import run
from .runs import runs
from .sbc import sbc
from .search import search, tune
from .serve import serve
from .table import papers, table

#: the exit code of an error that is none of the user's
DEFECT = 1

typer.core.HAS_RICH = False  # some versions escape "[required]" for rich even where rich_markup_mode is None

app = typer.Typer(
    help="Hierarchical-Bayesian personalised federated learning.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if (loaded := sys.modules.get("hierfl.experiments.methods")) is not None:
        loaded.forget()
    if version:
        from hierfl import __version__

        typer.echo(f"hierfl {__version__}")
        raise typer.Exit


COMMANDS = (
    run, runs, compare, ablate, sbc, report, protocol, predict, serve, table, tune, search, collect, cost,
    ablation_table, bench, methods, datasets,
)  # fmt: skip
for command in COMMANDS:
    app.command(command.__name__.replace("_", "-"))(command)
# What was `hierfl papers` says how it is called now.
app.command("papers", hidden=True, context_settings={"ignore_unknown_options": True})(papers)
app.add_typer(federate, name="federate")


def refuse_empty(arguments: Sequence[str]) -> None:
    """An empty value (of an unset variable, say) is not "nothing was said", and an empty path is not this folder.

    Raises:
        UserError: for one.
    """
    for before, argument in zip(["", *arguments], arguments, strict=False):
        if not argument or (argument.startswith("--") and argument.find("=") == len(argument) - 1):
            option = (argument or before).removesuffix("=")
            raise UserError(f"{option} is empty" if option.startswith("-") else "an argument is empty")


def main() -> NoReturn:
    """The console script: bad input is one line and exit code 2."""
    import logging

    log_to_stderr()
    for handler in logging.getLogger().handlers:  # a site's own log takes more
        handler.setLevel(logging.WARNING)
    keep_memory()
    try:
        refuse_empty(sys.argv[1:])
        code = app(standalone_mode=False)
    except RankLost as error:
        # The threads of a broken group would abort the ordinary exit: this rank would seem the one that was killed.
        _say(str(error))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(error.status)
    except UserError as error:
        _fail(str(error), error.status)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:  # a path that cannot be used, a full disk
        _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(error.format_message(), err=True)  # type: ignore[attr-defined]
            sys.exit(2)
        if hasattr(error, "format_message"):  # the command line itself was not understood
            _fail(error.format_message())
        if type(error).__name__ == "Abort":
            sys.exit(130)
        _fail(f"{type(error).__name__}: {str(error) or 'no message'}; this is a defect, see {_traced(error)}", DEFECT)
    sys.exit(code if isinstance(code, int) else 0)


def _traced(error: Exception) -> str:
    """A file with the traceback that its owner alone can read: errors may quote rows."""
    import tempfile
    import traceback

    handle, name = tempfile.mkstemp(".txt", "hierfl-traceback-")
    with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write("".join(traceback.format_exception(error)))
    return name


def _fail(message: str, status: int = UserError.status) -> NoReturn:
    _say(message)
    sys.exit(status)


def _say(message: str) -> None:
    typer.echo(f"error: {shown(' '.join(message.split()))}", err=True)
