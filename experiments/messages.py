"""Lines for the person who waits, on standard error: results stay alone on standard output. And lines of logs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from hierfl.files import shown, shown_lines


def to_stderr(show: bool = True) -> Callable[[str], None]:
    """A function that writes a line at once, or does nothing."""

    def say(line: str) -> None:
        if show:
            print(shown_lines(line), file=sys.stderr, flush=True)

    return say


class EscapedFormatter(logging.Formatter):
    """A log's lines: names that others have chosen end no line, and move no cursor."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """A record in one line."""
        record.message = shown(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        """The record's text, with that of an exception in lines of its own."""
        return shown_lines(super().format(record))


def log_to_stderr() -> None:
    """Warnings of this process on standard error, escaped."""
    logging.basicConfig(level=logging.WARNING)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(EscapedFormatter("%(levelname)s: %(message)s"))
