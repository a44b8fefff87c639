"""What a server's folder says of its study: who is waited for, who was never seen, who is slow, and for how long."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.commands import Call

from hierfl.experiments.federate.contributions import Recorded, read_status
from hierfl.experiments.federate.progress import in_words, progress
from hierfl.file_lock import locked
from hierfl.inference.engines.remote.wire import encode

SITES = ["east", "north", "south", "west"]


def request(kind: str, number: int) -> dict[str, bytes]:
    """To all of them."""
    return dict.fromkeys(SITES, encode({"kind": kind, "round": number}, {}))


def contributions(folder: Path, rows: list[tuple[str, str, float]]) -> None:
    """Lines of rounds that are over: kind, client, seconds."""
    lines = [f"2026-11-27T10:00:00+00:00,{k // 3},{kind},{name},{took},10,10" for k, (kind, name, took) in
             enumerate(rows)]  # fmt: skip
    with open(folder / "contributions.csv", "a") as file:
        file.write("\n".join(lines) + "\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A server that waits in round 5 of 20: for east (slow), south (in time) and west (never seen); north refuses."""
    recorded = Recorded(tmp_path, "study\x1b[8m", 20, SITES, ends_early=True)
    contributions(tmp_path, [("round", name, took) for _ in range(4) for name, took in
                             (("east", 2.0), ("north", 2.5), ("south", 60.0))])  # fmt: skip

    def ask(requests: dict[str, bytes]) -> dict[str, bytes]:
        raise KeyboardInterrupt

    recorded.ask = lambda requests: {"north": encode({"error": "no", "refused": "budget", "round": 4}, {})}
    recorded(request("round", 4))
    recorded.ask = ask
    with pytest.raises(KeyboardInterrupt):
        recorded(request("round", 5))
    assert len(recorded.status["round_seconds"]) == 1
    recorded.status["round_seconds"] = [61.0, 59.0, 60.0]
    recorded.waiting(["east", "south", "west"])
    return tmp_path


def test_a_server_that_waits(folder: Path) -> None:
    since = datetime.fromisoformat(read_status(folder)["since"])
    lines = progress(folder, since + timedelta(seconds=90))
    assert lines[0] == r"study\x1b[8m: round 5 of 20"
    assert lines[1].endswith("for 90 s; yet to answer: east, south, west")
    text = "\n".join(lines)
    assert "east is slow: 90 s, where its own earlier answers took 2 s; last seen 2026-11-27" in text
    assert "south: last seen 2026-11-27T10:00:00+00:00; its own earlier answers took 60 s" in text
    assert "west has never been seen: it has answered nothing so far; ask whether it has approved" in text
    assert "no server works in this folder here" in text
    with locked(folder / ".lock", ""):
        lines = progress(folder, since + timedelta(seconds=90))
    assert "no server works" not in "\n".join(lines)
    assert "16 rounds left: at most 16 min, at 60 s a round" in text
    assert "north refuses (budget) since" in text
    assert "(round of round 4): its own log says why" in text
    assert "south is usually slow: 60 s a round, where the others take 2" in text


def test_rounds_that_are_asked_once_more_after_a_restart_are_counted(tmp_path: Path) -> None:
    """Each once, whoever asks for it again with the same record; and at least one for each restart."""
    counted = []
    for restart, numbers in ((0, [1, 2]), (0, [2]), (1, [2, 3]), (1, [3]), (2, [2, 3, 4]), (3, [5])):
        recorded = Recorded(tmp_path, "s", 20, SITES)  # each a process of its own
        for number in numbers:
            about = {"kind": "round", "round": number, **({"restart": restart} if restart else {})}
            recorded(dict.fromkeys(SITES, encode(about, {})))
        counted.append(read_status(tmp_path)["again"])
    assert counted == [0, 0, 1, 1, 3, 3]


def test_who_has_answered_while_others_are_waited_for_is_seen(tmp_path: Path) -> None:
    """Also of the first request, whose answers are written down together."""
    recorded = Recorded(tmp_path, "s", 20, SITES)

    def ask(requests: dict[str, bytes]) -> dict[str, bytes]:
        recorded.waiting(["west"])
        raise KeyboardInterrupt

    recorded.ask = ask
    with pytest.raises(KeyboardInterrupt):
        recorded(request("prepare", 0))
    never = [line.split()[0] for line in progress(tmp_path) if "never been seen" in line]
    assert never == ["west"]


def test_a_server_that_has_ended(folder: Path, hierfl: Call) -> None:
    path = folder / "status.json"
    status = json.loads(path.read_text())
    ends = {"all rounds are done": "the server has ended well", "x\x1by": r"may go on (--resume): x\x1by"}
    for how, words in ends.items():
        path.write_text(json.dumps({**status, "ended": how, "waiting": []}))
        text = "\n".join(progress(folder, datetime.now(UTC)))
        assert words in text
        assert "west has never been seen" in text
        assert "left:" not in text
    path.write_text(json.dumps({**status, "ended": "all rounds are done", "round": 20, "waiting": []}))
    assert "the server has ended well: all rounds are done" in progress(folder)
    path.write_text(json.dumps({**status, "ended": "all rounds are done", "waiting": []}))
    assert "the server has ended well: the method needed 5 of at most 20 rounds" in progress(folder)
    code, text, _ = hierfl("federate", "status", folder)
    assert code == 0
    assert "\x1b[8m" not in text


def test_folders_from_before_are_read(tmp_path: Path) -> None:
    """Without the newer entries."""
    (tmp_path / "contributions.csv").write_text("when,round,kind,client,seconds,bytes_to,bytes_from\n")
    old = {"study": "s", "rounds": 3, "round": 1, "kind": "round", "since": "2026-11-27T10:00:00+00:00",
           "waiting": ["north"], "ended": None}  # fmt: skip
    (tmp_path / "status.json").write_text(json.dumps(old))
    assert any("north has never been seen" in line for line in progress(tmp_path))
    assert Recorded(tmp_path, "s", 3, ["north"]).status["known"] == ["north"]


def test_each_site_has_its_own_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of the slowest."""
    recorded = Recorded(tmp_path, "s", 3, SITES[:2])
    clock = iter([0.0, 1.0, 9.0, 9.0, 9.0])
    monkeypatch.setattr("hierfl.experiments.federate.contributions.time.monotonic", lambda: next(clock))

    def ask(requests: dict[str, bytes]) -> dict[str, bytes]:
        recorded.waiting(["north"])
        recorded.waiting([])
        return {name: encode({"round": 1}, {}) for name in requests}

    recorded.ask = ask
    recorded(dict.fromkeys(SITES[:2], encode({"kind": "hello", "round": 1}, {})))
    rows = [line.split(",") for line in (tmp_path / "contributions.csv").read_text().splitlines()[1:]]
    assert [(row[3], float(row[4])) for row in rows] == [("east", 1.0), ("north", 9.0)]


@pytest.mark.parametrize(
    ("seconds", "words"), [(-1.0, "0 s"), (59.4, "59.4 s"), (600, "10 min"), (9000, "2.5 h"), (10**6, "11.6 days")]
)
def test_durations(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
