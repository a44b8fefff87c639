"""Troubles that pass: a full disk, a mount that is away, a stale handle. What fails is tried again with a pause."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import UserError
from .files import shown
from .plain_folder import Linked

log = logging.getLogger("hierfl")
#: seconds of the first pause, and of the longest
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0


class Troubles:
    """What is tried again: one line in the log when a trouble begins, and one when it is over.

    Args:
        remedy: what is said of a trouble that begins.
    """

    def __init__(self, remedy: str = "it is tried again until it can be used") -> None:
        self.remedy = remedy
        self._pause: dict[str, float] = {}
        self._due: dict[str, float] = {}

    def due(self, what: str) -> bool:
        """Whether it is time to try: always, of what has no trouble."""
        return self._due.get(what, 0.0) <= time.monotonic()

    def hurry(self) -> None:
        """Ends all pauses: what has trouble is tried at once."""
        self._due.clear()

    @contextmanager
    def tried(self, what: str) -> Iterator[None]:
        """Runs what may fail; an error of the system, or a link, is noted, and goes no further."""
        try:
            yield
        except (OSError, Linked) as error:
            if what not in self._pause:
                log.warning("%s: %s; %s", what, in_words(error), self.remedy)
            self._pause[what] = pause = min(2 * self._pause.get(what, FIRST_PAUSE / 2), LONGEST_PAUSE)
            self._due[what] = time.monotonic() + pause
        else:
            if self._pause.pop(what, None) is not None:
                self._due.pop(what, None)
                log.warning("%s: it can be used again", what)


def in_words(error: OSError | UserError) -> str:
    """An error of the system in one line."""
    if isinstance(error, UserError):
        return str(error)
    return shown(f"{error.strerror or type(error).__name__}{f': {error.filename}' if error.filename else ''}")
