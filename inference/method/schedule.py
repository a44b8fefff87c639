"""Who trains when, when what was trained counts, and what happens at the end: one declared object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from hierfl.errors import unknown

from ..local.base import LocalStep

#: what a client does in a round in which it does not report, the least strict first
Absent = Literal["train", "catch-up", "freeze"]
ABSENT: tuple[Absent, ...] = get_args(Absent)


@dataclass(frozen=True)
class Plan:
    """Two sets of clients in one round, by their positions.

    Attributes:
        reporting: who sends a message.
        training: who trains; those who report are among them.
    """

    reporting: Sequence[int]
    training: Sequence[int]


@dataclass(frozen=True)
class Schedule:
    """A method's declaration of everything about time that is not a round's local steps.

    Attributes:
        absent: what a client does in a round in which it does not report: "train" keeps its own values fresh;
            "catch-up" trains only in rounds after which everything is evaluated; "freeze" changes nothing.
        commit: when the personal values that a round has made replace the old ones: "always", or "if-used": only
            where the client's message was used. Clients learn that with the next broadcast.
        final_steps: what every client does after the last round, the shared values held: chains, for its posterior.
            Nothing is sent, and personal values may change their shape.
        final_when: the final steps come at the "end" alone, or before every "evaluation", where nothing that they make
            goes into the next round.
        new_client_steps: what a client that was never seen does with a few examples of its own, sending nothing; None
            for the final steps, or else those of a round's steps that train personal values alone.
    """

    absent: Absent = "train"
    commit: Literal["always", "if-used"] = "always"
    final_steps: Sequence[LocalStep] = ()
    final_when: Literal["end", "evaluation"] = "end"
    new_client_steps: Sequence[LocalStep] | None = None

    def __post_init__(self) -> None:
        choices = {"absent": ABSENT, "commit": ("always", "if-used"), "final_when": ("end", "evaluation")}
        for name, values in choices.items():
            if getattr(self, name) not in values:
                raise unknown(f"value of a schedule's {name}", getattr(self, name), values)

    def at_least(self, absent: Absent) -> Schedule:
        """The schedule where absent clients do no more than ``absent`` allows: the one place where a user overrides it.

        What a method forbids them stays forbidden.
        """
        return replace(self, absent=max(self.absent, absent, key=ABSENT.index))

    def plan(self, reporting: Sequence[int], clients: int, *, evaluated: bool, personal: bool) -> Plan:
        """Who trains and who reports in a round.

        Args:
            reporting: who was drawn to report.
            clients: J.
            evaluated: whether everything is evaluated after the round.
            personal: whether clients have values of their own; without any, training changes a message alone.
        """
        everyone = personal and (self.absent == "train" or (self.absent == "catch-up" and evaluated))
        return Plan(reporting, range(clients) if everyone else reporting)

    def is_final(self, round: int, rounds: int) -> bool:
        """Whether what is evaluated after this round is what the final steps make of the personal values."""
        return bool(self.final_steps) and (round >= rounds or self.final_when == "evaluation")
