"""Sites at work in threads, and what goes wrong below them: disks, mounts, and folders that others write to."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.studies import FileStudy, formula_study, patients, write_tables

from hierfl import troubles
from hierfl.experiments.federate import work
from hierfl.experiments.federate.work import answer_by_files
from hierfl.inference.engines.remote import files
from hierfl.plain_folder import PlainFolder

#: how the studies differ from others
SMALL = {"rounds": 3, "formula": "y ~ center(age) + (1 | site)"}
#: seconds after which a test that should have ended counts as hanging
HANGS = 120.0


def quickly(monkeypatch: Any) -> None:
    """Pauses of hundredths of a second."""
    for module, name, value in (
        (files, "POLL", 0.01), (work, "POLL", 0.01), (files, "LAID_AGAIN", 0.05), (troubles, "FIRST_PAUSE", 0.02),
        (troubles, "LONGEST_PAUSE", 0.1),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


class Clock:
    """The clock of couriers by files. A deadline passes when a test says so, however slow the machine is."""

    sleep = staticmethod(time.sleep)

    def __init__(self, monkeypatch: Any) -> None:
        self.ahead = 0.0
        monkeypatch.setattr(files, "time", self)

    def monotonic(self) -> float:
        """Seconds."""
        return time.monotonic() + self.ahead

    def forward(self, seconds: float) -> None:
        """Goes forward."""
        self.ahead += seconds


def study_in(folder: Path, **given: Any) -> FileStudy:
    """A gaussian study of three sites and three rounds."""
    own = write_tables(patients(3), folder / "data")
    return FileStudy(formula_study(folder, own, **{**SMALL, **given}), own, folder)


class Worker:
    """A site's process, as a thread."""

    def __init__(self, file_study: FileStudy, name: str, delay: Callable[[bytes], None] = lambda request: None) -> None:
        self.file_study, self.name, self.stop, self.delay = file_study, name, threading.Event(), delay
        self.answered: list[bytes] = []
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    @property
    def ended(self) -> bool:
        """Whether the study has, or this process is to end."""
        return self.stop.is_set() or self.file_study.gates[self.name].ended

    def answer(self, request: bytes) -> bytes:
        """The site's own, after a while."""
        self.delay(request)
        reply = self.file_study.gates[self.name].answer(request)
        self.answered.append(request)
        return reply

    def _work(self) -> None:
        try:
            answer_by_files(self, self.file_study.folder / "exchange", self.name)
        except BaseException as error:  # for the test to see
            self.error = error


@contextmanager
def working(file_study: FileStudy, *, without: tuple[str, ...] = (), **delays: Any) -> Iterator[dict[str, Worker]]:
    """All sites work but some; in the end all of them end, whatever has happened."""
    workers = {name: Worker(file_study, name, delays.get(name, lambda request: None)) for name in file_study.files
               if name not in without}  # fmt: skip
    try:
        yield workers
    finally:
        for worker in workers.values():
            worker.stop.set()
        for worker in workers.values():
            worker.thread.join(HANGS)
            assert not worker.thread.is_alive(), f"{worker.name} hangs"


def wait_for(happens: Callable[[], object], seconds: float = HANGS) -> None:
    """Until something is so."""
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, "it never happens"
        time.sleep(0.01)


def fails(number: int, times: int = 3) -> Callable[[], None]:
    """Raises an error of the system some times, and then no more."""
    left = [times]

    def fail() -> None:
        if left[0] > 0:
            left[0] -= 1
            raise OSError(number, os.strerror(number))

    return fail


def broken(monkeypatch: Any, call: str, where: Callable[[Path, str], bool], number: int, times: int = 3) -> None:
    """One of a plain folder's calls fails some times, for some files."""
    whole, fail = getattr(PlainFolder, call), fails(number, times)

    def trial(self: PlainFolder, *given: Any) -> Any:
        if where(self.path, str(given[0]) if given else ""):
            fail()
        return whole(self, *given)

    monkeypatch.setattr(PlainFolder, call, trial)


def also(monkeypatch: Any, after: Callable[[PlainFolder, str, bytes], None]) -> None:
    """Somebody else acts on every file that was written."""
    whole = PlainFolder.write

    def write(self: PlainFolder, name: str, data: bytes) -> None:
        whole(self, name, data)
        after(self, name, data)

    monkeypatch.setattr(PlainFolder, "write", write)


def away(folder: Path, seconds: float, *, empty: bool) -> None:
    """A mount vanishes for a while; its mount point stays as an empty folder, or nothing does."""
    gone = folder.with_name(f"{folder.name}-away")
    folder.rename(gone)
    if empty:
        folder.mkdir()
    time.sleep(seconds)
    if empty:
        folder.rename(folder.with_name(f"{folder.name}-below"))
    gone.rename(folder)
