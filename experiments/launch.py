"""How the commands of this package are started: bad input is one line, and memory is kept."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from hierfl.errors import UserError
from hierfl.files import shown

#: of glibc's mallopt: how many arrays may lie in memory maps of their own; how much may be free before it is returned;
#: how much is taken at a time
MMAP_MAX, TRIM_THRESHOLD, TOP_PAD = -4, -1, -2


def launch(main: Callable[[list[str]], None]) -> None:
    """Runs a module's command with the arguments of the process."""
    keep_memory()
    try:
        refuse_empty(sys.argv[1:])
        main(sys.argv[1:])
    except UserError as error:
        print(f"error: {shown(error)}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # a path that cannot be used, a full disk
        print(f"error: {error.strerror or error}{f': {error.filename}' if error.filename else ''}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        sys.exit(130)


def refuse_empty(arguments: Sequence[str]) -> None:
    """An empty value (of an unset variable, say) is not "nothing was said", and an empty path is not this folder.

    Raises:
        UserError: for one.
    """
    for before, argument in zip(["", *arguments], arguments, strict=False):
        if not argument or (argument.startswith("--") and argument.find("=") == len(argument) - 1):
            option = (argument or before).removesuffix("=")
            raise UserError(f"{option} is empty" if option.startswith("-") else "an argument is empty")


def keep_memory() -> bool:
    """Has the process keep the memory that it frees, instead of handing it back to the system; whether it could.

    Every step of a large network makes gradients of tens of megabytes, which glibc takes from the system anew each
    time: what is lost in page faults is a fifth of a round of pFedV's network. Nothing happens elsewhere than with
    glibc, or where the environment says how it is to allocate (``MALLOC_...``, ``GLIBC_TUNABLES``).
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
    return all([mallopt(MMAP_MAX, 0), mallopt(TRIM_THRESHOLD, 2**31 - 1), mallopt(TOP_PAD, 2**26)])
