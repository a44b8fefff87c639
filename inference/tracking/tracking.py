"""A run and its trackers: what each has logged already, and what becomes of one that fails."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from hierfl.errors import UserError, unknown

from .base import Logged, TrackedRun, Tracker

log = logging.getLogger("hierfl")
#: every tracker: its module in this package, its class, and the package that it needs, which is also the extra's name
TRACKERS = {
    "csv": ("to_csv", "CsvTracker", ""),
    "tensorboard": ("to_tensorboard", "TensorBoardTracker", "tensorboard"),
    "mlflow": ("to_mlflow", "MlflowTracker", "mlflow"),
    "wandb": ("to_wandb", "WandbTracker", "wandb"),
}
#: split under which numbers of summary.json are logged
SUMMARY = "summary"


def tracker_names(trackers: str | Sequence[str] | None) -> list[str]:
    """Trackers by name, each once.

    Args:
        trackers: such as ``"csv"``, ``"csv,tensorboard"``, or a list of names.

    Raises:
        UserError: for a name that is none, or a package that is not installed.
    """
    parts = trackers.split(",") if isinstance(trackers, str) else list(trackers or ())
    names = list(dict.fromkeys(part.strip() if isinstance(part, str) else part for part in parts))
    for name in names:
        if not isinstance(name, str) or name not in TRACKERS:
            raise unknown("tracker", str(name), TRACKERS)
        package = TRACKERS[name][2]
        if package and importlib.util.find_spec(package) is None:
            raise UserError(f"tracker {name} needs {package}: pip install 'hierfl[{name}]'")
    return names


class Tracking:
    """Trackers of one run.

    Args:
        names: of :func:`tracker_names`.
        run: what they are given of it.

    Raises:
        UserError: for a tracker that does not begin.
    """

    def __init__(self, names: Sequence[str], run: TrackedRun) -> None:
        self.trackers: dict[str, Tracker] = {}
        self.logged: dict[str, set[Logged]] = {}
        for name in names:
            module, kind, _ = TRACKERS[name]
            try:
                adapter = importlib.import_module(f"hierfl.inference.tracking.{module}")
                self.trackers[name] = getattr(adapter, kind)(run)
                self.logged[name] = self.trackers[name].logged()
            except UserError:
                self.close(finished=False)
                raise
            except Exception as error:
                self.close(finished=False)
                raise UserError(f"tracker {name}: {' '.join(str(error).split()) or type(error).__name__}") from error

    def __enter__(self) -> Tracking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(finished=kind is None)

    def observe(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Logs what is new.

        Args:
            rows: all evaluations so far, as of :attr:`~hierfl.inference.run.result.Run.evaluations`.
        """
        for row in rows:
            self._metrics(row["round"], row["split"], row)

    def finish(self, number: int, summary: Mapping[str, Any], figures: Sequence[Path] = ()) -> None:
        """Logs what a finished run leaves.

        Args:
            number: of the last round.
            summary: its numbers are logged, at the last round, as of the split ``"summary"``.
            figures: pictures of the run's folder.
        """
        self._metrics(number, SUMMARY, summary)
        for name in list(self.trackers):
            for path in figures:
                self._guarded(name, "figure", number, path)

    def close(self, finished: bool) -> None:
        """Ends the run in every tracker."""
        for name in list(self.trackers):
            self._guarded(name, "close", finished)
        self.trackers = {}

    def _metrics(self, number: int, split: str, row: Mapping[str, Any]) -> None:
        values = {name: float(value) for name, value in row.items() if name != "round" and _is_number(value)}
        if not values:
            return
        for name in list(self.trackers):
            if (number, split) not in self.logged[name]:
                self.logged[name].add((number, split))
                self._guarded(name, "metrics", number, split, values)

    def _guarded(self, name: str, method: str, *arguments: Any) -> None:
        """Calls a tracker; one that fails is left out from then on, and the run goes on."""
        if name not in self.trackers:
            return
        try:
            getattr(self.trackers[name], method)(*arguments)
        except Exception as error:
            del self.trackers[name]
            log.warning("tracker %s stopped, and the run goes on: %s", name, " ".join(str(error).split()))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def flat_parameters(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Entries of a configuration by ``TABLE.NAME``: numbers, booleans and text; others as text."""
    return {
        f"{table}.{name}": value if isinstance(value, int | float | str) else str(value)
        for table, entries in tables.items()
        for name, value in entries.items()
    }
