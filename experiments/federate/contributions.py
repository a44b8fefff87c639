"""Who contributed when: what the server writes down of its questions and their answers."""

from __future__ import annotations

import csv
import io
import json
import os
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hierfl.errors import UserError
from hierfl.inference.engines.remote.questions import Ask
from hierfl.inference.engines.remote.wire import header
from hierfl.schema import AnyOf, Number, Schema, read_json

from ..run_folder.csv_files import read_frame
from ..run_folder.files import write_text

CONTRIBUTIONS, STATUS = "contributions.csv", "status.json"
COLUMNS = ("when", "round", "kind", "client", "seconds", "bytes_to", "bytes_from")
STATUS_SCHEMA: Schema = {
    "study": str, "rounds": Number(int, 0), "round": Number(int, 0), "kind": str, "since": str, "waiting": [str],
    "ended": AnyOf(str, None),
}  # fmt: skip


def now() -> str:
    """As it is written down."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Recorded:
    """An :data:`~hierfl.inference.engines.remote.questions.Ask` that writes down who has answered when.

    Args:
        folder: the server's.
        study: its name.
        rounds: of it.
    """

    def __init__(self, folder: Path, study: str, rounds: int) -> None:
        self.folder = folder
        self.ask: Ask = lambda requests: {}
        self.status: dict[str, Any] = {
            "study": study, "rounds": rounds, "round": 0, "kind": "", "since": now(), "waiting": [], "ended": None,
        }  # fmt: skip
        self._begun = time.monotonic()
        self._sent: Mapping[str, int] = {}
        if not (folder / CONTRIBUTIONS).is_file():
            self._append([COLUMNS])

    def __call__(self, requests: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Asks."""
        first = header(next(iter(requests.values()))) if requests else {}
        self._begun, self._sent = time.monotonic(), {name: len(request) for name, request in requests.items()}
        self.status |= {"round": first.get("round", 0), "kind": first.get("kind", ""), "since": now()}
        self.waiting(list(requests))
        answers = self.ask(requests)
        seconds, when = round(time.monotonic() - self._begun, 3), now()
        about = self.status["round"], self.status["kind"]
        self._append(
            [(when, *about, name, seconds, len(requests[name]), len(answer)) for name, answer in answers.items()]
        )
        return answers

    def waiting(self, names: Sequence[str]) -> None:
        """Who has yet to answer."""
        self.status["waiting"] = list(names)
        self._write()

    def end(self, how: str) -> None:
        """Writes down that nobody is asked any more."""
        self.status |= {"waiting": [], "ended": how}
        self._write()

    def _write(self) -> None:
        write_text(self.folder / STATUS, json.dumps(self.status, indent=1) + "\n")

    def _append(self, rows: Sequence[Sequence[Any]]) -> None:
        """Lines at the end of the file: a server that is killed has at most not written the last of them."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        with open(self.folder / CONTRIBUTIONS, "a", encoding="utf-8") as file:
            file.write(text.getvalue())
            file.flush()
            os.fsync(file.fileno())


def read_status(folder: Path) -> dict[str, Any]:
    """What a server's folder says of its study.

    Raises:
        UserError: for a folder that is no server's.
    """
    if not (folder / STATUS).is_file():
        raise UserError(f"{folder} is not the folder of a study's server: it has no {STATUS}")
    return read_json(folder / STATUS, STATUS_SCHEMA)


def last_contributions(folder: Path) -> list[list[str]]:
    """For each client that has answered: its name, rounds that it was part of, its last answer, kilobytes from it."""
    frame = read_frame(folder / CONTRIBUTIONS, ("when", "kind", "client"), COLUMNS)
    found = []
    for name, rows in frame.groupby("client"):
        rounds = rows[rows["kind"] == "round"]
        last = rows.iloc[-1]
        found.append(
            [str(name), str(rounds["round"].nunique()), f"{last['kind']} of round {last['round']:.0f}, {last['when']}",
             f"{rows['bytes_from'].sum() / 1e3:.1f}"]
        )  # fmt: skip
    return found
