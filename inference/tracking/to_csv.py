"""The tracker that needs no package: a csv file with one metric in a line, which grows while the run runs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path

from hierfl.files import write_whole

from .base import Logged, TrackedRun

FILE, PARAMETERS = "track.csv", "track-parameters.json"
COLUMNS = ("run", "round", "split", "metric", "value")


class CsvTracker:
    """``track.csv`` in the run's folder: run, round, split, metric, value; parameters in ``track-parameters.json``."""

    def __init__(self, run: TrackedRun) -> None:
        self.path, self.name = run.folder / FILE, run.name
        parameters = dict(run.parameters)
        text = json.dumps({"run": run.name, **parameters}, indent=1, default=str)
        write_whole(run.folder / PARAMETERS, f"{text}\n".encode())
        self._lines = _whole_lines(self.path) if run.resumed else []
        write_whole(self.path, "".join([_line(*COLUMNS), *self._lines]).encode())

    def logged(self) -> set[Logged]:
        rows = csv.reader(self._lines)
        return {(int(number), split) for _, number, split, *_ in rows}

    def metrics(self, number: int, split: str, values: Mapping[str, float]) -> None:
        text = "".join(_line(self.name, number, split, name, repr(value)) for name, value in values.items())
        # One write of one evaluation: a reader never sees a part of a line, a killed process leaves at most one.
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(text)

    def figure(self, number: int, path: Path) -> None:
        """Nothing: pictures are in the run's folder."""

    def close(self, finished: bool) -> None:
        """Nothing: every line is in the file."""


def _line(*cells: object) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _whole_lines(path: Path) -> list[str]:
    """Lines of evaluations that are whole.

    A killed process may have written a part of the last evaluation: that one goes, and is written again.
    """
    if not path.is_file():
        return []
    lines = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True)[1:] if line.endswith("\n")]
    rows = list(csv.reader(lines))
    last = rows[-1][1:3] if rows else []
    return [line for line, row in zip(lines, rows, strict=True) if row[1:3] != last]
