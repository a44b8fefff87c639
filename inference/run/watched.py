"""What the watch on clients has found: tables, and a line for each client that stands out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from hierfl.data.client_names import in_words

from ..server.robust.measures import MEASURES
from ..server.robust.standing import StandsOut
from ..server.robust.watch import Watch

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("hierfl")
#: what a method may know beside the measures of every message
DISTANCE = "estimate_distance"
#: between the names of clients that are watched together
JOINED = " + "


@dataclass(frozen=True)
class Watched:
    """What is known of each row of messages, of a client or of a group of clients.

    Attributes:
        names: of the rows, R of them.
        measured: (T, R, 4); not a number where nothing is known.
        named: the rows that stand out.
        estimated: names of what is estimated with and without each row, p of them.
        before: lines about clients that stand out by their sums before the first round.
        beside, without, errors: estimates with each row, without it, (R, p), and standard errors (p,); None without.
    """

    names: Sequence[str]
    measured: np.ndarray
    named: Sequence[StandsOut]
    estimated: Sequence[str] = ()
    beside: np.ndarray | None = None
    without: np.ndarray | None = None
    errors: np.ndarray | None = None
    before: Sequence[str] = ()

    @classmethod
    def from_watch(cls, watch: Watch, ids: Sequence[str]) -> Watched | None:
        """The findings at the end of a fit, or so far; None where single messages are not seen."""
        if not watch.members:
            return None
        names = [JOINED.join(ids[j] for j in row) for row in watch.members]
        table, left_out = watch.table, watch.without  # the last round may be judged by now alone
        kept = cls(names, table, watch.named, watch.estimated, before=watch.before)
        if left_out is None:
            return kept
        beside, without, errors = (v.cpu().numpy() for v in (left_out.beside, left_out.without, left_out.errors))
        return replace(kept, beside=beside, without=without, errors=errors)

    @property
    def lines(self) -> list[str]:
        """A line for each row that stands out, with the estimates that it moves most."""
        return [*self.before, *map(self.line, self.named)]

    def line(self, row: StandsOut) -> str:
        """The line about one row that stands out."""
        return f"{self.words(row)}{self._moved(row.client)}"

    def words(self, row: StandsOut) -> str:
        """Who it is and by what it stands out, without estimates."""
        far = "" if not np.isfinite(row.distance) else f", {row.distance:.0f} spreads from the others'"
        names = self.names[row.client].split(JOINED)
        return f"{in_words(*names)} stand{'s' * (len(names) < 2)} out by {row.words} (round {row.round}){far}"

    def _moved(self, row: int) -> str:
        if self.beside is None or self.without is None or self.errors is None:
            return ""
        gaps = np.abs(self.beside[row] - self.without[row]) / self.errors
        if np.isnan(gaps).all():
            return "; no estimate is possible with it"
        k = int(np.nanargmax(gaps))
        name, error = self.estimated[k], self.errors[k]
        beside, without = f"{self.beside[row, k]:.4g}", f"{self.without[row, k]:.4g}"
        if beside == without:  # no estimate moves by a digit that is printed
            return ""
        words = f"standard error {error:.2g}, by the variances of all"
        return f"; {name} is {beside} with it and {without} without ({words})"

    @property
    def influence(self) -> pd.DataFrame:
        """A row for each round and client: how its message lies beside the others'; see docs/false-messages.md."""
        from .tables import Table

        rounds, rows, _ = self.measured.shape
        columns = dict(zip((*MEASURES, DISTANCE), self.measured.reshape(-1, 4).T, strict=True))
        table = Table({
            "round": np.repeat(np.arange(1, rounds + 1), rows), "client": np.tile(np.array(self.names, object), rounds),
            **columns,
        })  # fmt: skip
        measured = np.isfinite(self.measured).any(2).ravel()
        kept = table[measured].reset_index(drop=True)
        return kept if np.isfinite(self.measured[..., 3]).any() else kept.drop(columns=DISTANCE)

    @property
    def estimates(self) -> pd.DataFrame:
        """A row for each client and number that is estimated: with it, without it, and the standard error of all."""
        from .tables import Table

        if self.beside is None or self.without is None or self.errors is None:
            return Table({"client": [], "estimate": []})
        rows, p = self.beside.shape
        return Table({
            "client": np.repeat(np.array(self.names, object), p), "estimate": list(self.estimated) * rows,
            "with": self.beside.ravel(), "without": self.without.ravel(), "se": np.tile(self.errors, rows),
        })  # fmt: skip


@dataclass(frozen=True)
class Watching:
    """What is known at the end of a search, of which all but who stands out is computed when it is asked for.

    Attributes:
        watch: that has seen it.
        ids: clients' names.
    """

    watch: Watch
    ids: Sequence[str]

    @cached_property
    def watched(self) -> Watched | None:
        """All of it."""
        return Watched.from_watch(self.watch, self.ids)

    @property
    def lines(self) -> list[str]:
        """See :attr:`Watched.lines`."""
        if not self.watch.members:
            return []
        return self.watched.lines if self.watch.named and self.watched else [*self.watch.before]


def watching(watch: Watch, ids: Sequence[str]) -> Watched | Watching | None:
    """What is known at the end of a fit."""
    return Watching(watch, ids) if watch.judges and watch.rule is None else Watched.from_watch(watch, ids)


def announce(watch: Watch, ids: Sequence[str]) -> None:
    """Says who stands out, once each, as soon as it is known: a study may last for weeks.

    Estimates of a round before the last are not said, since they are not those of the fit: :attr:`Watched.lines` has
    them at its end.
    """
    if (watched := Watched.from_watch(watch, ids)) is None:
        return
    for row in watched.named:
        if row.client not in watch.announced:
            watch.announced.add(row.client)
            log.warning(watched.words(row))
