"""Where a study is: who has yet to answer, who refuses, who is slow, and about how long it will take."""

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
LAST = 20


def progress(folder: Path, clock: datetime | None = None) -> list[str]:
    """A study's lines, from its server's folder.

    Args:
        folder: the server's own.
        clock: the time now; None for this machine's.

    Raises:
        UserError: for a folder that is no server's.
    """
    held, now = read_status(folder), clock or datetime.now(UTC)
    frame = read_frame(folder / CONTRIBUTIONS, ("when", "kind", "client"), COLUMNS)
    lines = [f"{shown(held['study'])}: round {held['round']} of {held['rounds']}"]
    if held["ended"] is not None:
        lines.append(_ended(held))
    else:
        since = f" for {in_words((now - at).total_seconds())}" if (at := _time(held["since"])) else ""
        left = ", ".join(held["waiting"]) or "nobody"
        lines.append(f"asked ({held['kind']}) since {held['since']}{since}; yet to answer: {left}")
        waited = max((now - at).total_seconds(), 0.0) if at else 0.0
        lines += [_of_waiting(name, waited, frame, held) for name in held["waiting"] if name not in _refusals(held)]
        lines += _eta(held)
        if not is_locked(folder / LOCK):
            lines.append("no server works in this folder here: it runs on another machine, or it was killed (--resume)")
    lines += [
        f"{name} refuses ({about['refused']}) since {about['since']} ({about['kind']} of round {about['round']}): its "
        "own log says why" for name, about in sorted(_refusals(held).items())
    ]  # fmt: skip
    waiting = held["waiting"] if held["ended"] is None else []
    # (answers are written down together, with the last one)
    here = set(held.get("asked", ())) - set(waiting) if held["ended"] is None else set()
    lines += _never_seen([name for name in held.get("clients", ()) if name not in here | set(waiting)], frame)
    return lines + _slow(frame)


def _refusals(held: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = held.get("refusals", {})
    return found


def _ended(held: Mapping[str, Any]) -> str:
    if held["ended"] != DONE:
        return f"the server has ended, nobody is asked any more, and it may go on (--resume): {shown(held['ended'])}"
    needed = f"the method needed {held['round']} of at most {held['rounds']} rounds"
    return f"the server has ended well: {needed if held['round'] < held['rounds'] else DONE}"


def _of_waiting(name: str, waited: float, frame: pd.DataFrame, held: Mapping[str, Any]) -> str:
    """What is known of one who has yet to answer."""
    own = frame[frame["client"] == name]
    if own.empty:
        remedy = "ask whether it has approved the study, and runs"
        return f"{name} has never been seen: it has answered nothing so far; {remedy}"
    last = f"last seen {own.iloc[-1]['when']}"
    usual = usual_seconds(frame, held["kind"])
    mine = usual.get(name)
    others = [seconds for other, seconds in usual.items() if other != name]
    expected = mine if mine is not None else (median(others) if others else None)
    if expected is None:
        return f"{name}: {last}; nobody has answered this kind of request yet"
    whose = "its own earlier" if mine is not None else "the others'"
    if waited > max(SLOW * expected, expected + AT_LEAST):
        return f"{name} is slow: {in_words(waited)}, where {whose} answers took {in_words(expected)}; {last}"
    return f"{name}: {last}; {whose} answers took {in_words(expected)}"


def _never_seen(names: Sequence[str], frame: pd.DataFrame) -> list[str]:
    seen = set(frame["client"])
    return [f"{name} has never been seen" for name in names if name not in seen]


def _slow(frame: pd.DataFrame) -> list[str]:
    """Who usually takes far longer than the others do."""
    usual, found = usual_seconds(frame, "round"), []
    for name, seconds in usual.items():
        others = [value for other, value in usual.items() if other != name]
        if others and seconds > max(SLOW * median(others), median(others) + AT_LEAST):
            found.append(
                f"{name} is usually slow: {in_words(seconds)} a round, where the others take {in_words(median(others))}"
            )
    return found


def usual_seconds(frame: pd.DataFrame, kind: str) -> dict[str, float]:
    """{client: median of its last answers' seconds} to one kind of request.

    Args:
        frame: contributions.csv.
        kind: of request.
    """
    rows = frame[frame["kind"] == kind]
    return {str(name): float(own["seconds"].tail(LAST).median()) for name, own in rows.groupby("client")}


def _eta(held: Mapping[str, Any]) -> list[str]:
    """How long the rounds that are left take, by the last ones."""
    rounds, took = held["rounds"] - held["round"] + (held["kind"] == "round"), held.get("round_seconds") or []
    if not took or rounds <= 0:
        return []
    most, usual = "at most" if held.get("ends_early") else "about", median(took)
    left = f"{rounds} round{'s' * (rounds != 1)} left"
    return [f"{left}: {most} {in_words(rounds * usual)}, at {in_words(usual)} a round"]


def _time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
