"""The trackers of a run's folder."""

from __future__ import annotations

from pathlib import Path

from hierfl.inference.tracking.base import TrackedRun
from hierfl.inference.tracking.tracking import Tracking, flat_parameters, tracker_names

from .config_file import read_config


def tracked_run(folder: Path, track: str | None, *, resumed: bool) -> Tracking:
    """Opens a run's trackers; without any, one that does nothing.

    Args:
        folder: the run's; its configuration is the parameters.
        track: names, as of ``--track``.
        resumed: whether the run goes on.

    Raises:
        UserError: for a tracker that does not begin.
    """
    names = tracker_names(track)
    parameters = flat_parameters(read_config(folder).as_tables()) if names else {}
    return Tracking(names, TrackedRun(folder, parameters, resumed))
