"""The command line, called in the process of a test."""

from __future__ import annotations

from collections.abc import Callable

from hierfl.experiments import cli

#: exit code, standard output, standard error
Answer = tuple[int, str, str]
#: what the fixture ``hierfl`` gives: calls the command line in an empty folder
Call = Callable[..., Answer]


def command(*arguments: object) -> None:
    """Calls the command line in this process; what goes wrong is raised."""
    cli.app([*map(str, arguments)], standalone_mode=False)
