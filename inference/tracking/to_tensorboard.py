"""TensorBoard: an event file in the run's folder, so that ``tensorboard --logdir runs`` shows runs by their names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from .base import Logged, TrackedRun

#: how event files are called
EVENTS = "events.out.tfevents.*"


class TensorBoardTracker:
    """Scalars ``SPLIT/METRIC`` at the round's number, the configuration as text, figures as images."""

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        logged = _read(run.folder) if run.resumed else set[Logged]()
        # A killed process may have written a part of the last round: TensorBoard drops it, and it is written again.
        last = max((step for step, _ in logged), default=0)
        self._logged = {(step, split) for step, split in logged if step < last}
        self.writer = SummaryWriter(str(run.folder), purge_step=last if logged else None)
        if last == 0:
            rows = [f"| {name} | {_cell(value)} |" for name, value in run.parameters.items()]
            self.writer.add_text("configuration", "\n".join(["| option | value |", "|---|---|", *rows]), 0)
        self.writer.flush()

    def logged(self) -> set[Logged]:
        return self._logged

    def metrics(self, number: int, split: str, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(f"{split}/{name}", value, number)
        self.writer.flush()

    def figure(self, number: int, path: Path) -> None:
        from PIL import Image

        with Image.open(path) as picture:
            pixels = np.asarray(picture.convert("RGB"))
        self.writer.add_image(f"figures/{path.stem}", pixels, number, dataformats="HWC")

    def close(self, finished: bool) -> None:
        self.writer.close()


def _cell(value: object) -> str:
    """A value in a cell of a Markdown table."""
    text = str(value).replace("\\", "\\\\").replace("`", "\\`").replace("|", "\\|")
    return " ".join(text.split())


def _read(folder: Path) -> set[Logged]:
    """Evaluations in the event files of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    if not any(folder.glob(EVENTS)):
        return set()
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {(event.step, tag.partition("/")[0]) for tag in events.Tags()["scalars"] for event in events.Scalars(tag)}
