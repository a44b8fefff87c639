"""What an experiment tracker does for a run: one protocol, an adapter for each tracker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

#: round and split of an evaluation
Logged = tuple[int, str]


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is given of a run before its first round.

    Attributes:
        folder: of the run; its name is the run's name in every tracker.
        parameters: the configuration, {name: value}.
        resumed: whether the run goes on: the tracker then goes on with the run that it has.
    """

    folder: Path
    parameters: Mapping[str, Any]
    resumed: bool = False

    @property
    def name(self) -> str:
        """What the run is called in a tracker."""
        return self.folder.resolve().name


class Tracker(Protocol):
    """A tracker that has a run open. A constructor takes a :class:`TrackedRun`."""

    def logged(self) -> set[Logged]:
        """Evaluations that it has already, from before the run was resumed."""
        ...

    def metrics(self, number: int, split: str, values: Mapping[str, float]) -> None:
        """Metrics of one evaluation.

        Args:
            number: of the round.
            split: the data it was evaluated on; ``"summary"`` for the numbers of summary.json.
            values: {name: value}.
        """
        ...

    def figure(self, number: int, path: Path) -> None:
        """A finished picture (png).

        Args:
            number: of the last round.
            path: of the file; its stem is the picture's name.
        """
        ...

    def close(self, finished: bool) -> None:
        """Ends the run in the tracker.

        Args:
            finished: False for a run that was stopped, and may be resumed.
        """
        ...
