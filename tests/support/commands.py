"""The command line, called in the process of a test."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from hierfl.experiments import cli

#: exit code, standard output, standard error
Answer = tuple[int, str, str]
#: what the fixture ``hierfl`` gives: calls the command line in an empty folder
Call = Callable[..., Answer]


def command(*arguments: object) -> None:
    """Calls the command line in this process; what goes wrong is raised."""
    cli.app([*map(str, arguments)], standalone_mode=False)


def fork(command: tuple[object, ...], prepare: Callable[[], object] = lambda: None, out: str = "out.txt") -> int:
    """Starts a command line in a child that has everything imported; the child's number.

    Args:
        command: without ``hierfl``.
        prepare: called in the child before.
        out: file for what it says.
    """
    child = os.fork()
    if child == 0:
        code = 70
        try:
            descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")  # a test's are pytest's
            sys.argv = ["hierfl", *map(str, command)]
            prepare()
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return child


def ended(child: int) -> int:
    """Waits for a child; its exit status, or minus its signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def forked(command: tuple[object, ...], prepare: Callable[[], object] = lambda: None) -> int:
    """Runs a command line in such a child; its exit status, or minus its signal."""
    return ended(fork(command, prepare))
