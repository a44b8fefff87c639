"""Progress of a study: who has yet to answer, who refuses, who is slow, and about how long it will take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from hierfl.file_lock import is_locked
from hierfl.files import shown
from hierfl.inference.run.pace import in_words

from ..run_folder.csv_files import read_frame
from .contributions import COLUMNS, CONTRIBUTIONS, read_status
from .server import DONE, LOCK

#: a site is slow from so many times what is usual on, and so many seconds more than that
SLOW, AT_LEAST = 3.0, 1.0
#: how many of the last times say what is usual
NUM_RECENT_TIMES = 20


def progress(folder: Path, clock: datetime | None = None) -> list[str]:
    """A study's lines, from its server's folder.

    Args:
        folder: the server's own.
        clock: the time now; None for this machine's.

    Raises:
        UserError: for a folder that is no server's.
    """
    status, now = read_status(folder), clock or datetime.now(UTC)
    frame = read_frame(folder / CONTRIBUTIONS, ("when", "kind", "client"), COLUMNS)
    lines = [f"{shown(status['study'])}: round {status['round']} of {status['rounds']}"]
    if status["ended"] is not None:
        lines.append(_ended(status))
    else:
        since = f" for {in_words((now - at).total_seconds())}" if (at := _time(status["since"])) else ""
        left = ", ".join(status["waiting"]) or "no one"
        lines.append(f"asked ({status['kind']}) since {status['since']}{since}; yet to answer: {left}")
        waited = max((now - at).total_seconds(), 0.0) if at else 0.0
        lines += [
            _of_waiting(name, waited, frame, status) for name in status["waiting"] if name not in _refusals(status)
        ]
        lines += _eta(status)
        if not is_locked(folder / LOCK):
            lines.append("no server works in this folder here: it runs on another machine, or it was killed (--resume)")
    lines += [
        f"{name} refuses ({refusal['refused']}) since {refusal['since']} ({refusal['kind']} of round "
        f"{refusal['round']}): its own log says why" for name, refusal in sorted(_refusals(status).items())
    ]  # fmt: skip
    waiting = status["waiting"] if status["ended"] is None else []
    # Answers are written down together, with the last one.
    answered = set(status.get("asked", ())) - set(waiting) if status["ended"] is None else set()
    lines += _silent_sites([name for name in status.get("clients", ()) if name not in answered | set(waiting)], frame)
    return lines + _slow(frame)


def _refusals(status: Mapping[str, Any]) -> Mapping[str, Any]:
    refusals: Mapping[str, Any] = status.get("refusals", {})
    return refusals


def _ended(status: Mapping[str, Any]) -> str:
    if status["ended"] != DONE:
        return f"the server has ended, no one is asked any more, and it may go on (--resume): {shown(status['ended'])}"
    needed = f"the method needed {status['round']} of at most {status['rounds']} rounds"
    return f"the server has ended well: {needed if status['round'] < status['rounds'] else DONE}"


def _of_waiting(name: str, waited: float, frame: pd.DataFrame, status: Mapping[str, Any]) -> str:
    """What is known of one who has yet to answer."""
    own = frame[frame["client"] == name]
    if own.empty:
        remedy = "ask whether it has approved the study, and runs"
        return f"{name} has never been seen: it has answered nothing so far; {remedy}"
    last = f"last seen {own.iloc[-1]['when']}"
    usual = usual_seconds(frame, status["kind"])
    mine = usual.get(name)
    others = [seconds for other, seconds in usual.items() if other != name]
    expected = mine if mine is not None else (median(others) if others else None)
    if expected is None:
        return f"{name}: {last}; no one has answered this kind of request yet"
    whose = "its own earlier" if mine is not None else "the others'"
    if waited > max(SLOW * expected, expected + AT_LEAST):
        return f"{name} is slow: {in_words(waited)}, where {whose} answers took {in_words(expected)}; {last}"
    return f"{name}: {last}; {whose} answers took {in_words(expected)}"


def _silent_sites(names: Sequence[str], frame: pd.DataFrame) -> list[str]:
    clients = set(frame["client"])
    return [f"{name} has never been seen" for name in names if name not in clients]


def _slow(frame: pd.DataFrame) -> list[str]:
    """Who usually takes far longer than the others do."""
    usual, lines = usual_seconds(frame, "round"), []
    for name, seconds in usual.items():
        others = [value for other, value in usual.items() if other != name]
        if others and seconds > max(SLOW * median(others), median(others) + AT_LEAST):
            lines.append(
                f"{name} is usually slow: {in_words(seconds)} a round, where the others take {in_words(median(others))}"
            )
    return lines


def usual_seconds(frame: pd.DataFrame, kind: str) -> dict[str, float]:
    """{client: median of its last answers' seconds} to one kind of request.

    Args:
        frame: contributions.csv.
        kind: of request.
    """
    rows = frame[frame["kind"] == kind]
    return {str(name): float(own["seconds"].tail(NUM_RECENT_TIMES).median()) for name, own in rows.groupby("client")}


def _eta(status: Mapping[str, Any]) -> list[str]:
    """How long the rounds that are left take, by the last ones."""
    rounds, took = status["rounds"] - status["round"] + (status["kind"] == "round"), status.get("round_seconds") or []
    if not took or rounds <= 0:
        return []
    most, usual = "at most" if status.get("ends_early") else "about", median(took)
    left = f"{rounds} round{'s' * (rounds != 1)} left"
    return [f"{left}: {most} {in_words(rounds * usual)}, at {in_words(usual)} a round"]


def _time(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
