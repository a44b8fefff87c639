"""A progress bar for anything that takes longer than two seconds."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hierfl.metrics.registry import in_percent

from .journal import Row
from .pace import Pace
from .trend import trend_of

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


log = logging.getLogger("hierfl")
PATIENCE = 2.0
QUIET = 15.0  # seconds between lines where a bar cannot be drawn


class Bar:
    """Rounds done, time left, the last metrics and their trend, on standard error; appears after two seconds.

    Args:
        total: rounds in all.
        done: rounds that are done already (a resumed run).
        pace: of the rounds.
        rows: evaluations, which grow; their trend on validation or training data is shown.
        show: False for none.
    """

    def __init__(
        self, total: int, done: int = 0, pace: Pace | None = None, rows: Sequence[Row] = (), *, show: bool = True
    ) -> None:
        self.total, self.done, self.show = total, done, show
        self._pace, self._rows = pace or Pace(), rows
        self._since, self._text = time.monotonic(), ""
        self._spoke = self._last = self._since
        self._bar: Progress | None = None
        self._task: TaskID

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, row: Mapping[str, Any] | None = None) -> None:
        """One more round is done; ``row`` holds its metrics, if it was evaluated."""
        self.done += 1
        now = time.monotonic()
        self._pace.add(self.done, now - self._last)
        self._last = now
        if row:
            shown = {"pm_accuracy": "PM", "gm_accuracy": "GM", "pm_rmse": "PM rmse", "gm_rmse": "GM rmse"}
            self._text = "  ".join(
                _show(word, row[key], key) for key, word in shown.items() if row.get(key) is not None
            )
            trend = trend_of(self._rows) if self.show else None
            self._text += "" if trend is None else f"  {trend.words}"
        self._speak()
        if self.show and self._bar is None and time.monotonic() - self._since > PATIENCE and self.done < self.total:
            self._start()
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, last=self._text, left=self._left())

    def end(self, converged: bool) -> None:
        """The rounds have ended; one line on a long fit that has ended by its own rule, so that the bar is not full."""
        if converged and self.show and self._last - self._since > PATIENCE:
            words = f"converged in round {self.done} of at most {self.total}"
            if self._bar is not None:
                self._bar.update(self._task, total=self.done, last=words, left="")
            else:
                print(words, file=sys.stderr, flush=True)

    def _left(self) -> str:
        return self._pace.words(self.done, self.total)

    def _speak(self) -> None:
        """Prints a line now and then where there is no terminal to draw on."""
        now = time.monotonic()
        if self.show and not sys.stderr.isatty() and now - self._spoke > QUIET and self.done < self.total:
            self._spoke = now
            parts = [f"round {self.done}/{self.total}", self._left(), self._text]
            print("  ".join(filter(None, parts)), file=sys.stderr, flush=True)

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (
            TextColumn("round"), MofNCompleteColumn(), BarColumn(bar_width=24), TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[last]}"),
        )  # fmt: skip
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task("", total=self.total, completed=self.done, last=self._text, left=self._left())
        self._bar.start()


def warn_diverged(number: int, diverged: Tensor, ids: Sequence[str], count: int) -> None:
    """Says who diverged in a round.

    Args:
        number: of the round.
        diverged: (J,), True where a client did.
        ids: the clients' names.
        count: how many did.
    """
    if count:
        names = ", ".join(ids[j] for j in diverged.nonzero().flatten().tolist()[:10]) or "masks hide which"
        log.warning(
            "round %d: %d client%s diverged and kept the previous state: %s%s",
            number, count, "s" * (count > 1), names, ", ..." * (count > 10),
        )  # fmt: skip


def working(what: str, show: bool) -> AbstractContextManager[Any]:
    """Says on standard error what takes its time, while it does (nothing where that is no terminal)."""
    if not show:
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(what)


def _show(word: str, value: float, key: str) -> str:
    return f"{word} {value:.1%}" if in_percent(key) else f"{word} {value:.4g}"
