"""Who contributed when: what the server writes down of its questions and their answers."""

from __future__ import annotations

import csv
import io
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hierfl.errors import UserError
from hierfl.inference.engines.remote.questions import Ask
from hierfl.inference.engines.remote.refusals import LASTING, refusal_in
from hierfl.inference.engines.remote.wire import header
from hierfl.schema import AnyOf, Number, Schema, read_json

from ..run_folder.csv_files import read_frame
from ..run_folder.files import write_text

CONTRIBUTIONS, STATUS = "contributions.csv", "status.json"
COLUMNS = ("when", "round", "kind", "client", "seconds", "bytes_to", "bytes_from")
STATUS_SCHEMA: Schema = {
    "study": str, "rounds": Number(int, 0), "round": Number(int, 0), "kind": str, "since": str, "waiting": [str],
    "ended": AnyOf(str, None),
    "clients?": [str], "known?": [str], "ends_early?": bool, "round_seconds?": [Number(float, 0)],
    **dict.fromkeys(("again?", "restart?", "reached?", "furthest?"), Number(int, 0)),
    "asked?": [str], "refusals?": {"*": {"refused": str, "since": str, "kind": str, "round": Number(int, 0)}},
}  # fmt: skip
#: how many of the last rounds' seconds are kept
KEPT_SECONDS = 20


def now() -> str:
    """The current time (UTC) as a file has it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Recorded:
    """An :data:`~hierfl.inference.engines.remote.questions.Ask` that writes down who has answered when.

    Args:
        folder: the server's.
        study: its name.
        rounds: of it.
        clients: the roster.
        ends_early: whether the method may end before its rounds are used up.

    Attributes:
        status: what status.json holds: beside the round and who has yet to answer, ``known`` (all that were ever on the
            roster), ``refusals`` by client, and ``round_seconds`` of the last rounds. ``again`` is how many rounds were
            asked once more after declared restarts, at least one for each; ``reached`` the last one under the restart
            record ``restart``, and ``furthest`` the last one of all.
        finished: who knows of the end of the study.
    """

    def __init__(
        self, folder: Path, study: str, rounds: int, clients: Iterable[str] = (), *, ends_early: bool = False
    ) -> None:
        self.folder, self.finished = folder, set[str]()
        self.ask: Ask = lambda requests: {}
        before = read_status(folder) if (folder / STATUS).is_file() else {}
        roster = list(clients)
        self.status: dict[str, Any] = {
            "study": study, "rounds": rounds, "round": 0, "kind": "", "since": now(), "waiting": [], "ended": None,
            "clients": roster, "known": sorted({*before.get("known", ()), *roster}), "ends_early": ends_early,
            "refusals": {}, "round_seconds": list(before.get("round_seconds", ()))[-KEPT_SECONDS:],
            **{name: before.get(name, 0) for name in ("again", "restart", "reached", "furthest")},
        }  # fmt: skip
        self._begun = time.monotonic()
        self._round_begun: float | None = None
        self._took: dict[str, float] = {}
        if not (folder / CONTRIBUTIONS).is_file():
            self._append([COLUMNS])

    def __call__(self, requests: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Asks."""
        first = header(next(iter(requests.values()))) if requests else {}
        self._begun, self._took = time.monotonic(), {}
        self._time_round(int(first.get("round", 0)), first.get("kind") == "round")
        if first.get("kind") == "round":
            self._count_again(int(first["round"]), int(first.get("restart", 0)))
        self.status |= {
            "round": first.get("round", 0),
            "kind": first.get("kind", ""),
            "since": now(),
            "asked": list(requests),
        }
        self.status["waiting"] = []  # of the request before
        self.waiting(list(requests))
        answers = self.ask(requests)
        whole, when = time.monotonic() - self._begun, now()
        asked = self.status["round"], self.status["kind"]
        for name, answer in answers.items():
            self._note(name, refusal_in(answer), when)
        self._append(
            [
                (when, *asked, name, round(self._took.get(name, whole), 3), len(requests[name]), len(answer))
                for name, answer in answers.items()
            ]
        )
        return answers

    def _time_round(self, number: int, begins: bool) -> None:
        """Seconds from one round's beginning to the next's: what the server itself takes is in them."""
        if begins and self._round_begun is not None and number == self.status["round"] + 1:
            took = round(self._begun - self._round_begun, 3)
            self.status["round_seconds"] = [*self.status["round_seconds"], took][-KEPT_SECONDS:]
        if begins:
            self._round_begun = self._begun

    def _count_again(self, number: int, restart: int) -> None:
        """Rounds that sites compute once more, as their ledgers count them."""
        status = self.status
        if (restart, number) > (status["restart"], status["reached"]):
            again = status["again"] + (number <= status["furthest"])
            status |= {"again": max(again, restart), "restart": restart, "reached": number}
            status["furthest"] = max(status["furthest"], number)

    def _note(self, client: str, refused: str, when: str) -> None:
        """Who refuses, and since when; a late answer takes it back."""
        refusals = self.status["refusals"]
        if not refused:
            refusals.pop(client, None)
            if self.status["kind"] == "finish":
                self.finished.add(client)
        elif client not in refusals or refusals[client]["refused"] != refused:
            question = {name: self.status[name] for name in ("kind", "round")}
            refusals[client] = {"refused": refused, "since": when, **question}

    def waiting(self, names: Sequence[str]) -> None:
        """Who has yet to answer; the others have by now."""
        for name in set(self.status["waiting"]) - set(names):
            self._took.setdefault(name, time.monotonic() - self._begun)
        self.status["waiting"] = list(names)
        self._write()

    @property
    def without_end(self) -> list[str]:
        """Who does not know of the end, and is not waited for: those who refuse, and those who are off the roster."""
        refusals = self.status["refusals"]
        lasting = {name for name, refusal in refusals.items() if refusal["refused"] in LASTING}
        left = set(self.status["known"]) - set(self.status["clients"])
        return sorted((lasting | left) - self.finished)

    def end(self, how: str) -> None:
        """Writes down that no one is asked any more."""
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


def who_finished(folder: Path) -> list[str]:
    """Clients that have answered the end of a study."""
    frame = read_frame(folder / CONTRIBUTIONS, ("when", "kind", "client"), COLUMNS)
    return sorted({str(name) for name in frame[frame["kind"] == "finish"]["client"]})


def last_contributions(folder: Path) -> list[list[str | int | float]]:
    """A row for each client that has answered: its name, number of rounds, last answer, kilobytes from it."""
    frame = read_frame(folder / CONTRIBUTIONS, ("when", "kind", "client"), COLUMNS)
    table: list[list[str | int | float]] = []
    for name, rows in frame.groupby("client"):
        rounds = rows[rows["kind"] == "round"]
        last = rows.iloc[-1]
        table.append(
            [str(name), int(rounds["round"].nunique()), f"{last['kind']} of round {last['round']:.0f}, {last['when']}",
             round(float(rows["bytes_from"].sum()) / 1e3, 1)]
        )  # fmt: skip
    return table
