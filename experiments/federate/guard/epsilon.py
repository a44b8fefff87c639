"""What this user's account has spent of epsilon on its data, in all studies and under all names.

A study's whole epsilon is charged with its first round, before anything is computed: it cannot run out of it in the
middle. A round that is computed again is a further release of all that a round releases. Only a server that declares a
restart gets it, and it is charged as the round with the most releases. Epsilons of studies that have a row in common
add up.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from hierfl.errors import UserError
from hierfl.files import shown
from hierfl.inference.noise.plan import Plan

from ..contributions import now
from .ledger import Charge, Ledger, OverBudget
from .lines import Lines, waiting_lock
from .row_sets import RowHashes

#: of the ledger's folder
EPSILON = "epsilon.jsonl"
#: relative rounding of a sum of epsilons
ROUNDING = 1e-9


class ComputedBefore(UserError):
    """A question was answered with noise that this folder does not have any more: other noise would be a release."""


@dataclass(frozen=True)
class Spending:
    """A question as it was charged, or that its reply was kept.

    Attributes:
        data: the row set, as the ledger names it.
        study, client, slot, question: as of :class:`.ledger.Charge`.
        epsilon, delta: that the study has spent so far, this question included.
        again: how many rounds were computed again so far.
        answered: whether the reply is on the disk of the site.
    """

    data: str
    study: str
    client: str
    slot: str
    question: str
    epsilon: float
    delta: float
    again: int = 0
    answered: bool = False


class EpsilonLedger:
    """Epsilon of an account's data sets.

    Args:
        ledger: of the account, which knows whose rows are the same.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self._lines = ledger, Lines(ledger.folder / EPSILON)
        self._spent: list[Spending] = []

    def spendings(self) -> list[Spending]:
        """All that was ever charged, in its order.

        Raises:
            UserError: for a damaged file.
        """
        names = Spending.__dataclass_fields__
        for line in self._lines.catch_up():
            try:
                self._spent.append(Spending(**{name: line[name] for name in names}))
            except KeyError as error:
                raise UserError(f"{shown(self._lines.path)} is damaged: a line lacks {error}") from error
        return list(self._spent)

    @property
    def head(self) -> tuple[int, str]:
        """How many lines there are, and the digest of the last."""
        self.spendings()
        return self._lines.head

    def spent(self, data: str | RowHashes, *, but: tuple[str, str] | None = None) -> tuple[float, float]:
        """Epsilon and delta of all studies of rows of which some are in a row set: a bound for each of its patients.

        Args:
            data: the row set, as the ledger names it, or its hashes.
            but: digest of a study and name of the site in it that are left out.
        """
        largest = dict[tuple[str, str], Spending]()
        for spending in self.spendings():
            if (spending.study, spending.client) != but and self.ledger.has_rows_of(spending.data, data):
                key = spending.study, spending.client
                largest[key] = (
                    spending if key not in largest or spending.epsilon >= largest[key].epsilon else largest[key]
                )
        return math.fsum(spending.epsilon for spending in largest.values()), math.fsum(
            spending.delta for spending in largest.values()
        )

    def charge(
        self, asked: Charge, plan: Plan, rounds: int, largest: float, *, at: int, largest_delta: float = 1.0
    ) -> float:
        """Takes up a question about a round; the epsilon that its study has spent with it.

        Args:
            asked: the question.
            plan: of the study's noise.
            rounds: of the study, of which the plan's releases are.
            largest: epsilon of a data set, all studies together.
            at: the last round whose values the site has.
            largest_delta: as ``largest``.

        Raises:
            OverBudget: where less is left, or the plan has no such round.
            ComputedBefore: where a round was answered, and its noise is lost.
        """
        with waiting_lock(self.ledger.folder / f".{EPSILON}.lock"):
            mine = [s for s in self.spendings() if (s.study, s.client) == (asked.study, asked.client)]
            same = [s for s in mine if (s.slot, s.question) == (asked.slot, asked.question)]
            in_slot = [s.question for s in mine if s.slot == asked.slot]
            lost = any(s.answered and _round_of(s.slot) > at for s in mine)
            lost = lost or (any(s.answered for s in same) and in_slot[-1] != asked.question)
            if lost and (same or not asked.restart):
                raise ComputedBefore("a round was answered, and the folder that is here has lost its noise")
            if same:
                return same[-1].epsilon
            if _round_of(asked.slot) > rounds:
                raise OverBudget(f"the noise plan has {rounds} rounds, and another one is asked for")
            again = max((s.again for s in mine), default=0) + int(lost or bool(in_slot))
            epsilon = plan.with_restarts(again)
            others, deltas = self.spent(asked.data, but=(asked.study, asked.client))
            if deltas + plan.delta > largest_delta * (1 + ROUNDING):
                reason = f"delta {deltas:.3g} of {largest_delta:.3g} is spent on these rows"
                raise OverBudget(f"{reason}, and this study needs {plan.delta:.3g}")
            if others + epsilon > largest * (1 + ROUNDING):
                raise OverBudget(
                    f"epsilon {others:.3g} of {largest:g} is spent on these rows, and this study needs {epsilon:.3g}"
                )
            own = asked.data, asked.study, asked.client, asked.slot, asked.question
            self._append(Spending(*own, epsilon, plan.delta, again))
            return epsilon

    def answered(self, study: str, client: str, slot: str) -> None:
        """Notes that the reply to the question that was charged last in a slot is on the site's disk."""
        with waiting_lock(self.ledger.folder / f".{EPSILON}.lock"):
            mine = [s for s in self.spendings() if (s.study, s.client, s.slot) == (study, client, slot)]
            if mine and not mine[-1].answered:
                self._append(Spending(**{**asdict(mine[-1]), "answered": True}))

    def _append(self, spending: Spending) -> None:
        self._lines.append({**asdict(spending), "when": now()})
        self._spent.append(spending)


def _round_of(slot: str) -> int:
    return int(slot.split()[1])
