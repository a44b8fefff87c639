"""Lines for whoever waits: on standard error, so that results on standard output stay alone."""

from __future__ import annotations

import sys
from collections.abc import Callable


def to_stderr(show: bool = True) -> Callable[[str], None]:
    """A function that writes a line at once, or does nothing."""

    def say(line: str) -> None:
        if show:
            print(line, file=sys.stderr, flush=True)

    return say
