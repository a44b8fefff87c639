"""Trackers of a fit in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hierfl.errors import UserError

from ..method.base import Method
from ..options import Options
from .base import TrackedRun
from .tracking import Tracking, flat_parameters, tracker_names

#: is shown all evaluations so far
Observer = Callable[[list[dict[str, Any]]], None]


@contextmanager
def tracked_fit(
    track: str | Sequence[str] | None, folder: str | Path | None, method: Method, options: Options, *, resumed: bool,
    observe: Observer | None, leads: bool,
) -> Iterator[Observer | None]:  # fmt: skip
    """Opens the trackers of a fit; yields what is to observe it.

    Args:
        track: their names, as of :func:`~.tracking.tracker_names`.
        folder: of the fit; its name is the run's name.
        method, options: their settings are the parameters.
        resumed: whether the fit goes on from a checkpoint.
        observe: what observes it beside the trackers.
        leads: whether this process is the one that writes.

    Raises:
        UserError: for a tracker without a folder, or one that does not begin.
    """
    names = tracker_names(track)
    if not names or not leads:
        yield observe
        return
    if folder is None:
        raise UserError("track needs a folder, whose name is the run's name: fit(..., folder='runs/first')")
    place = Path(folder).expanduser()
    place.mkdir(parents=True, exist_ok=True)
    settings = vars(method.settings) if getattr(method, "settings", None) is not None else {}
    run = {"method": method.name or type(method).__name__, **asdict(options)}
    with Tracking(names, TrackedRun(place, flat_parameters({"run": run, "settings": settings}), resumed)) as tracking:

        def both(rows: list[dict[str, Any]]) -> None:
            tracking.observe(rows)
            if observe is not None:
                observe(rows)

        yield both
