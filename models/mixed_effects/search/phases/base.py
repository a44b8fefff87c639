"""What a phase of the search is: it says what the next round asks, and is given what was found.

    begin()  ->  ask()  ->  clients, and their sum  ->  tell(sums)  ->  ask()  ...  until done

A phase object is made again in every round.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from hierfl.inference.state import State

from ...model.equations import MixedModel
from ..requests import Phase, Request
from ..state import Search


@dataclass
class SearchPhase:
    """A phase, as it is in one round: what it knows is in the search's shared values and memory.

    Args:
        search: where it is.

    Attributes:
        number: by which clients know what a round is about.
        request: what it asks.
        done: whether it is at its end, once :meth:`begin` or :meth:`tell` has been called.
    """

    search: Search
    done: bool = field(default=False, init=False)
    number: ClassVar[Phase]
    request: ClassVar[Request]

    @classmethod
    def wanted(cls, method: MixedModel) -> bool:
        """Whether a method's search has this phase."""
        return True

    def begin(self) -> None:
        """Begins the phase, once, after the phases before."""

    def ask(self) -> State:
        """Shared values by short names at which the next round's clients answer."""
        raise NotImplementedError

    def tell(self, sums: State) -> None:
        """Takes the sums of the clients' replies, {field of the request's reply: (*shape)}."""
        raise NotImplementedError
