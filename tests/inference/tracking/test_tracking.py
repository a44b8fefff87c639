"""Trackers hold every evaluation once, also of a run that was stopped and goes on, and never stop a fit."""

from __future__ import annotations

import csv
import importlib.util
import json
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands import Call
from support.federations import blobs

from hierfl import UserError
from hierfl.inference import fit
from hierfl.inference.tracking import to_csv, tracking
from hierfl.inference.tracking.base import TrackedRun
from hierfl.models import FedAvg
from hierfl.nn.networks.build import architecture

#: {(split/metric, round): value}
Held = dict[tuple[str, int], float]


class Stop(Exception):
    pass


def run(folder: Path, track: str, *, stop: int = 0, resume: bool = False) -> list[dict[str, Any]]:
    """Evaluations of a fit of four rounds; stopped after one of them was logged, and before its checkpoint."""
    federation = blobs([24, 30, 40], validation=0.2, test=6)

    def observe(rows: list[dict[str, Any]]) -> None:
        if rows and rows[-1]["round"] == stop:
            raise Stop

    method = FedAvg(architecture("linear", federation), epochs=1)
    how = {"folder": folder, "track": track, "observe": observe, "resume": resume, "progress": False}
    return fit(method, federation, rounds=4, **how).evaluations


def expected(rows: list[dict[str, Any]]) -> Held:
    return {
        (f"{row['split']}/{name}", row["round"]): value
        for row in rows
        for name, value in row.items()
        if name not in ("round", "split", "seconds") and value is not None
    }


def in_csv(folder: Path) -> list[tuple[str, int, float]]:
    with (folder / "track.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["run"] for row in rows} == {folder.name}
    return [(f"{r['split']}/{r['metric']}", int(r["round"]), float(r["value"])) for r in rows]


def in_tensorboard(folder: Path) -> list[tuple[str, int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return [(tag, event.step, event.value) for tag in events.Tags()["scalars"] for event in events.Scalars(tag)]


def in_mlflow(folder: Path) -> list[tuple[str, int, float]]:
    import mlflow

    client, key = mlflow.MlflowClient(), json.loads((folder / "tracking.json").read_text())["mlflow"]["id"]
    kept = client.get_run(key)
    assert (kept.info.run_name, kept.info.status) == (folder.name, "FINISHED")
    assert kept.data.params["run.rounds"] == "4"
    return [(name, m.step, m.value) for name in kept.data.metrics for m in client.get_metric_history(key, name)]


def records(data: bytes) -> Iterator[bytes]:
    """Records of a log in LevelDB's format, in which wandb keeps an offline run: 7 bytes, then blocks of 32 KiB."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def in_wandb(folder: Path) -> list[tuple[str, int, float]]:
    from wandb.proto.wandb_internal_pb2 import Record

    # Its own process writes, and may be at it when an offline run has ended.
    logs = list(folder.glob("wandb/offline-run-*/logs/debug-internal.log"))
    for _ in range(200):
        if all("all finished" in log.read_text() for log in logs):
            break
        time.sleep(0.1)
    entries, names = [], set()
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for data in records(path.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            if record.run.run_id:
                names.add((record.run.run_id, record.run.display_name))
            values = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            step = int(values.get("_step", -1))
            entries += [(name, step, value) for name, value in values.items() if not name.startswith("_")]
    assert {name for _, name in names} == {folder.name}
    assert len(names) == 1  # one run, also where it was stopped
    return entries


READ: dict[str, Callable[[Path], list[tuple[str, int, float]]]] = {
    "csv": in_csv,
    "tensorboard": in_tensorboard,
    "mlflow": in_mlflow,
    "wandb": in_wandb,
}


@pytest.mark.parametrize(
    "name",
    [
        "csv",
        pytest.param("tensorboard", marks=pytest.mark.cpu(6, "imports TensorBoard and writes and reads event files")),
        pytest.param("mlflow", marks=pytest.mark.cpu(6, "imports MLflow, whose store is one file for each metric")),
        pytest.param("wandb", marks=pytest.mark.cpu(6, "imports wandb and starts its process twice")),
    ],
)
@pytest.mark.filterwarnings("ignore:::(mlflow|wandb|google|tensorboard|pydantic).*")
def test_a_stopped_run_goes_on_in_the_same_track(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name != "csv":
        pytest.importorskip(name)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlruns'}")
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = tmp_path / "a run"
    with pytest.raises(Stop):
        run(folder, name, stop=3)
    if name == "wandb":
        time.sleep(1.1)  # an offline run's folder is called by the second in which it began
    wanted = expected(run(folder, name, resume=True))
    entries = [entry for entry in READ[name](folder) if not entry[0].endswith("/seconds")]
    assert len(entries) == len(wanted)  # none is there twice
    assert {(key, step): value for key, step, value in entries} == pytest.approx(wanted, rel=1e-6)


def test_a_line_that_a_killed_process_has_begun_is_written_anew(tmp_path: Path) -> None:
    wanted = expected(run(tmp_path, "csv"))
    path = tmp_path / "track.csv"
    text = path.read_text()
    path.write_text(text[:-30])
    run(tmp_path, "csv", resume=True)
    assert path.read_text() == text
    assert {(key, step): value for key, step, value in in_csv(tmp_path) if "seconds" not in key} == wanted
    assert json.loads((tmp_path / "track-parameters.json").read_text())["settings.epochs"] == 1


def test_a_tracker_that_fails_stops_and_the_fit_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(to_csv.CsvTracker):
        def metrics(self, number: int, split: str, values: Any) -> None:
            if number == 2:
                raise OSError("no space left")
            super().metrics(number, split, values)

    monkeypatch.setattr(to_csv, "CsvTracker", Broken)
    assert {row["round"] for row in run(tmp_path, "csv")} == {1, 2, 3, 4}
    assert [r.getMessage() for r in caplog.records] == ["tracker csv stopped, and the run goes on: no space left"]


def test_what_cannot_be_tracked_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="unknown tracker 'tensorbord'; known: csv, tensorboard, mlflow, wandb"):
        tracking.tracker_names("tensorbord")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"tracker mlflow needs mlflow: pip install 'hierfl\[mlflow\]'"):
        tracking.tracker_names("csv, mlflow")
    with pytest.raises(UserError, match=r"track needs a folder"):
        fit(FedAvg(architecture("linear", blobs([9, 9]))), blobs([9, 9]), track="csv")

    def refuse(run: TrackedRun) -> None:
        raise ConnectionError("nobody\nanswers")

    monkeypatch.setattr(to_csv, "CsvTracker", refuse)
    with pytest.raises(UserError, match="tracker csv: nobody answers"):
        tracking.Tracking(["csv"], TrackedRun(tmp_path, {}))


@pytest.mark.cpu(5, "a run, and its last round again")
def test_the_command_tracks_metrics_and_summary(hierfl: Call, tmp_path: Path) -> None:
    small = ("-J", 3, "--split", "iid", "--rounds", 1, "--network", "mlp:4", "--quiet", "--out", "o")
    assert hierfl("run", "fedavg", *small, "--track", "csv")[0] == 0
    first = in_csv(tmp_path / "o")
    assert ("summary/pm_accuracy", 1) in {entry[:2] for entry in first}
    assert 'track = "csv"' in (tmp_path / "o/config.toml").read_text()
    assert hierfl("run", "--resume", "o", "--quiet")[0] == 0
    assert in_csv(tmp_path / "o") == first
    assert hierfl("run", "fedavg", *small, "--overwrite")[0] == 0
    assert not (tmp_path / "o/track.csv").exists()
    code, _, err = hierfl("run", "fedavg", *small, "--track", "csv,paper")
    assert (code, err) == (2, "error: unknown tracker 'paper'; known: csv, tensorboard, mlflow, wandb\n")
