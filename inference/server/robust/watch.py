"""The watch: it keeps what is measured of each client's messages, and combines messages where a rule asks for it.

It is on wherever single messages are seen and are few enough. It changes no number of a fit without a robust rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ...messages.singles import Singles
from ...messages.sums import Sums
from ...options import Options
from ...state import State
from ..exchange import Exchange
from .judged import Judged, Judging, Without
from .measures import measures
from .parse import parse_rule
from .repeats import Repeats, fingerprints
from .rules import RobustRule
from .standing import AGAIN, REJECTED, StandsOut, stand_out
from .totals import group_total
from .waiting import Waiting

#: bytes of all messages of a round, up to which they are watched without a robust rule
WATCHED_BYTES = 2**28
#: of a checkpoint: what the watch keeps
KEPT = "watch/"
#: of their names, where some numbers are not known
UNKNOWN = "/unknown"


def collects(options: Options, exchange: Exchange, clients: int) -> bool:
    """Whether an engine that sees single messages collects them: for a robust rule, or for the watch.

    Args:
        options: of the fit.
        exchange: what messages look like.
        clients: J.
    """
    if options.masked or not exchange.sending:
        return False
    return options.robust != "none" or exchange.bytes * clients <= WATCHED_BYTES


@dataclass
class Watch:
    """What is known of each row of messages: of clients, or of groups of them.

    Args:
        exchange: what messages look like.
        rule: combines them; None where they are added up.

    Attributes:
        members: whose messages each row is the sum of.
        measured: by round (R, M), :data:`~.measures.MEASURES` and what a rule adds.
        prints: by round (R + 1, 2), see :func:`~.repeats.fingerprints`; the last row is the broadcast's.
        rejected: by round (R,), True where a message has come and does not count.
        decided: rows that were named for good: by a rule that knows more than measures, or for rejected messages.
        weights: how much of each row counts in what is searched, (R,).
        memory: of a rule that judges, from round to round; empty without a robust rule.
        without: the last estimates without each.
        before: lines about clients that stand out by what they have said before the first round.
        announced: rows that were named on the screen.
        provisional: the round, from 1, that was judged for a checkpoint alone, as the last that says something so far;
            0 where there is none.
    """

    exchange: Exchange
    rule: RobustRule | None = None
    members: Sequence[Sequence[int]] = ()
    measured: list[Tensor] = field(default_factory=list)
    prints: list[Tensor] = field(default_factory=list)
    rejected: list[Tensor] = field(default_factory=list)
    decided: list[StandsOut] = field(default_factory=list)
    weights: Tensor | None = None
    memory: State = field(default_factory=dict)
    without: Without | None = None
    before: Sequence[str] = ()
    announced: set[int] = field(default_factory=set)
    provisional: int = 0
    _later: tuple[int, Callable[[int], Tensor]] | None = None
    _rounds: Waiting = field(default_factory=Waiting)
    _measures: Waiting = field(default_factory=Waiting)
    _repeats: Repeats = field(default_factory=Repeats)

    @classmethod
    def for_fit(cls, options: Options, exchange: Exchange) -> Watch:
        """Returns the watch of a fit."""
        return cls(exchange, parse_rule(options.robust))

    @torch.no_grad()
    def after_round(self, sums: Sums, singles: Singles | None, shared: State) -> Sums:
        """Notes a round's messages; of a search, from which nothing follows without a robust rule, once somebody asks.

        Args:
            sums: of the round.
            singles: the same one by one, a row for each client or group in their order; None where they are not seen.
            shared: as broadcast.

        Returns:
            The sums, or what a robust rule makes of the messages instead.
        """
        if singles is not None and self.rule is None and self.judges:
            size = self.exchange.bytes * len(singles.members)
            if self._rounds.room(size):
                self.members = singles.members
                self._rounds.add(partial(self._noted, sums, singles, shared), size)
                return sums
        self._rounds.done()
        return self._noted(sums, singles, shared)

    def _noted(self, sums: Sums, singles: Singles | None, shared: State) -> Sums:
        """See :meth:`after_round`."""
        if singles is None:
            rows = len(self.measured[-1]) if self.measured else 0
            for table, shape in ((self.measured, (rows, 4)), (self.prints, (rows + 1 if rows else 0, 2))):
                table.append(sums.reported.new_full(shape, torch.nan, dtype=torch.float64))
            self.rejected.append(sums.reported.new_zeros(rows, dtype=torch.bool))
            return sums
        self.members = singles.members
        measured = torch.nn.functional.pad(measures(singles, self.exchange, shared), (0, 1), value=torch.nan)
        self.measured.append(measured)
        asked = fingerprints({"": {k: v[None].to(singles.counts.device) for k, v in shared.items()}})
        prints = torch.where(singles.valid[:, None], fingerprints(singles.messages), torch.nan)
        self.prints.append(torch.cat([prints, asked]))
        self.rejected.append(singles.has_message & ~singles.valid)
        totals = dict(sums.totals)
        if self.rule is not None:  # a round of fewer than can be compared changes nothing
            enough = singles.valid.sum() >= self.rule.least
            sums = replace(sums, reported=sums.reported * enough)
        for name, group in self.exchange.sending.items():
            message = singles.messages[name]
            if isinstance(group.rule, Judging):
                if self.rule is not None or group.rule.says(shared):
                    self._put_off(partial(self._judge, group.rule, shared, message, singles))
                if self.rule is not None or self.weights is None:
                    kept = self._judge_deferred()
                if self.rule is not None:
                    totals[name] = {k: torch.einsum("r,r...->...", kept.to(v), v) for k, v in message.items()}
                    # Who is left out has reported: the search goes on without it.
                    sums = replace(sums, reported=sums.reported + (singles.has_message & ~singles.valid).sum())
            elif self.rule is not None:
                totals[name] = group_total(self.rule, group.form, message, singles.counts)
        return replace(sums, totals=totals)

    def _put_off(self, judge: Callable[[int], Tensor]) -> None:
        """Another round says something: without a robust rule nothing follows from it before somebody asks.

        A search has many rounds: the first and the last that say something are judged, and those that are announced.
        """
        if self.provisional:
            self.measured[self.provisional - 1] = self.measured[self.provisional - 1] * torch.nan
            self.decided = [row for row in self.decided if row.round != self.provisional]
            self.provisional = 0
        self._later = len(self.measured), judge

    @torch.no_grad()
    def _judge_deferred(self) -> Tensor:
        """Judges what was put off; how much of each message counts, (R,)."""
        later, self._later = self._later, None
        self.provisional = 0
        return later[1](later[0]) if later is not None else torch.zeros(0)

    def _judge(self, by: Judging, shared: State, message: State, singles: Singles, number: int) -> Tensor:
        """Notes what a rule makes of single messages of a round; how much of each counts, (R,)."""
        judged = by.judged(shared, message, singles, self.rule, self.memory)
        self._measures.add(partial(self._measure, judged, number))
        if self.rule is not None or not any(row.what != AGAIN for row in self.decided):
            # Without a rule a fit goes astray with a liar in it, and honest clients would be named later.
            named = {row.client for row in self.decided}
            self.decided += [StandsOut(row, number, what, far) for row, what, far in judged.named if row not in named]
        before = judged.weights if self.weights is None else self.weights.to(judged.weights)
        self.weights = before.minimum(judged.weights)
        for row in self._repeated():
            self.weights[row.client] = 0
        return self.weights * singles.valid

    def _measure(self, judged: Judged, number: int) -> None:
        """Notes what a rule measures of single messages of a round."""
        self.measured[number - 1], self.without = judged.measured, judged.without or self.without

    # -- what is said of it -------------------------------------------------------------------------------------------

    @staticmethod
    def _table(kept: Sequence[Tensor], width: int) -> np.ndarray:
        """(T, R, width) of a list by round, in which some rounds are of no rows."""
        rows = max((len(v) for v in kept), default=0)
        none = np.full((rows, width), np.nan)
        return np.array([v.cpu().numpy() if len(v) else none for v in kept]).reshape(len(kept), rows, width)

    @property
    def again(self) -> list[StandsOut]:
        """Rows that have sent an earlier message again."""
        self._rounds.done()
        return self._repeated()

    def _repeated(self) -> list[StandsOut]:
        """The same of the rounds that are noted."""
        for prints in self.prints[self._repeats.rounds :]:
            self._repeats.add(prints.cpu().numpy())
        return list(self._repeats.outliers.values())

    @property
    def table(self) -> np.ndarray:
        """(T, R, 4); of rounds of which nothing is known it is not a number."""
        self._rounds.done()
        self._judge_deferred()
        self._measures.done()
        return self._table(self.measured, 4)

    @property
    def judges(self) -> bool:
        """Whether a rule names clients by what it knows, not by measures."""
        return any(isinstance(group.rule, Judging) for group in self.exchange.sending.values())

    @property
    def named(self) -> list[StandsOut]:
        """The rows that stand out; each once."""
        self._rounds.done()
        self._judge_deferred()
        if not (rows := max(map(len, self.measured), default=0)):
            return []
        outliers = [*self.decided, *self.again]
        lost = np.array([v.cpu().numpy() if len(v) else np.zeros(rows, bool) for v in self.rejected])
        outliers += [
            StandsOut(int(j), int(lost[:, j].argmax()) + 1, REJECTED, np.nan) for j in np.flatnonzero(lost.any(0))
        ]
        outliers += [] if self.judges else stand_out(self.table)
        return list({row.client: row for row in outliers[::-1]}.values())[::-1]

    @property
    def estimated(self) -> Sequence[str]:
        """Names of what is estimated without each row."""
        rules = [group.rule for group in self.exchange.groups.values()]
        return next((list(rule.estimated) for rule in rules if isinstance(rule, Judging)), [])

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def tensors(self) -> State:
        """Its part of a checkpoint."""
        self._rounds.done()
        kept = self._later[0] if self._later is not None else self.provisional
        table = self.table
        if not table.size:
            return {}
        self.provisional, rows = kept, table.shape[1]
        lost = [v.cpu() if len(v) else torch.zeros(rows, dtype=torch.bool) for v in self.rejected]
        decided = [[row.client, row.round, row.what, row.distance] for row in self.decided]
        tensors = {
            "measured": torch.from_numpy(table), "prints": torch.from_numpy(self._table(self.prints, 2)),
            "rejected": torch.stack(lost), "decided": torch.tensor(decided, dtype=torch.float64).reshape(-1, 4),
            "provisional": torch.tensor(kept),
        }  # fmt: skip
        if self.weights is not None:
            tensors["weights"] = self.weights
        if self.without is not None:
            tensors |= {k: getattr(self.without, k) for k in ("beside", "without", "errors")}
        tensors |= {f"memory/{k}": v for k, v in self.memory.items()}
        # What is not a number is a mask of its own, so that checkpoints of the same bits are equal.
        tensors |= {f"{k}{UNKNOWN}": v.isnan() for k, v in tensors.items() if v.isnan().any()}
        numbers = {
            k: torch.where(tensors[k + UNKNOWN], 0, v) if k + UNKNOWN in tensors else v for k, v in tensors.items()
        }
        return {f"{KEPT}{k}": v for k, v in numbers.items()}

    def restore(self, tensors: Mapping[str, Tensor], rounds: int) -> None:
        """Takes over what :meth:`tensors` gave; nothing from a checkpoint that is older than the watch.

        Args:
            tensors: by name.
            rounds: that have ended: of those before the watch nothing is known.
        """
        kept = {k.removeprefix(KEPT): v for k, v in tensors.items() if k.startswith(KEPT)}
        if not kept:
            self.measured, self.prints = ([torch.zeros(0, 4, dtype=torch.float64)] * rounds for _ in range(2))
            self.rejected = [torch.zeros(0, dtype=torch.bool)] * rounds
            return
        masks = {k: kept.pop(k) for k in list(kept) if k.endswith(UNKNOWN)}
        for k, unknown in masks.items():
            name = k.removesuffix(UNKNOWN)
            kept[name] = torch.where(unknown, torch.nan, kept[name])
        self.measured, self.prints, self.rejected = (list(kept[k]) for k in ("measured", "prints", "rejected"))
        self.members = [[j] for j in range(kept["measured"].shape[1])]
        self.decided = [StandsOut(int(j), int(t), int(k), far) for j, t, k, far in kept["decided"].tolist()]
        self.weights, self.provisional = kept.get("weights"), int(kept.get("provisional", 0))
        self.memory = {k.removeprefix("memory/"): v for k, v in kept.items() if k.startswith("memory/")}
        if "without" in kept:
            self.without = Without(kept["beside"], kept["without"], kept["errors"])
