"""Trackers of a fit in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from hierfl.errors import UserError

from ..engines.base import Engine
from ..method.base import Method
from ..options import Options
from .base import TrackedRun
from .tracking import Tracking, flat_parameters, tracker_names

#: is shown all evaluations so far
Observer = Callable[[list[dict[str, Any]]], None]


class ReadyFit(Protocol):
    """What is needed of a :class:`~hierfl.inference.run.fit.Fit`."""

    engine: Engine
    method: Method
    options: Options


@contextmanager
def tracked_fit(
    ready: ReadyFit, track: str | Sequence[str] | None, folder: str | Path | None, observe: Observer | None, *,
    resumed: bool,
) -> Iterator[Observer | None]:  # fmt: skip
    """Opens the trackers of a fit; yields what is to observe it.

    Args:
        ready: the fit; its options and the method's settings are the parameters.
        track: their names, as of :func:`~.tracking.tracker_names`.
        folder: of the fit; its name is the run's name.
        observe: what observes it beside the trackers.
        resumed: whether the fit goes on from a checkpoint.

    Raises:
        UserError: for a tracker without a folder, or one that does not begin.
    """
    names = tracker_names(track)
    if not names or not ready.engine.leads:
        yield observe
        return
    if folder is None:
        raise UserError("track needs a folder, whose name is the run's name: fit(..., folder='runs/first')")
    tracking_folder = Path(folder).expanduser()
    tracking_folder.mkdir(parents=True, exist_ok=True)
    run = {"method": ready.method.name or type(ready.method).__name__, **asdict(ready.options)}
    parameters = flat_parameters({"run": run, "settings": vars(ready.method.settings)})
    with Tracking(names, TrackedRun(tracking_folder, parameters, resumed)) as tracking:

        def both(rows: list[dict[str, Any]]) -> None:
            tracking.observe(rows)
            if observe is not None:
                observe(rows)

        yield both
