"""Killed at any moment and resumed, a run ends in the same files, bit for bit (all but the clock's)."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from support.commands import Call
from support.drawing import one_figure
from support.federations import blobs

from hierfl import UserError
from hierfl.experiments.run_folder.files import write_metrics
from hierfl.inference import fit
from hierfl.inference.run import checkpoint as checkpoints
from hierfl.models import FedAvg, PFedVEM
from hierfl.nn.networks.build import architecture

RUN = ["run", "pfedvem", "-J", "6", "--network", "mlp:8", "--rounds", "24", "--participation", "0.5", "--out", "killed"]

#: a process that kills itself in the middle of its nth checkpoint: half a state file written, or the state file
#: renamed and the json not yet
SUICIDE = """
import os, signal, sys
from hierfl.inference.run import checkpoint as c
when, count, save, replace = sys.argv[1], int(sys.argv[2]), c.save_file, os.replace
def half(tensors, path):
    global count
    save(tensors, path)
    count -= 1
    if count == 0 and when == "half":
        data = open(path, "rb").read()
        open(path, "wb").write(data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
def between(old, new):
    replace(old, new)
    if count == 0 and when == "between" and str(new).endswith("safetensors"):
        os.kill(os.getpid(), signal.SIGKILL)
c.save_file, os.replace = half, between
sys.argv = ["hierfl", *sys.argv[3:]]
from hierfl.experiments.cli import main
main()
"""


def without_clock(folder: Path) -> dict[str, object]:
    """Everything in a run's folder, less what a clock wrote."""
    files: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file():
            files[name] = path.read_bytes()
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    files["metrics.csv"] = [{k: v for k, v in row.items() if k != "seconds"} for row in rows]
    summary = json.loads((folder / "summary.json").read_text())
    files["summary.json"] = {k: v for k, v in summary.items() if k != "seconds_per_round"}
    for name, rows_of in (("checkpoint/checkpoint.json", "metrics"), ("model/checkpoint.json", "evaluations")):
        record = json.loads((folder / name).read_text())
        record[rows_of] = [{k: v for k, v in row.items() if k != "seconds"} for row in record[rows_of]]
        files[name] = {k: v for k, v in record.items() if k not in ("seconds", "checksum")}
    return files


@pytest.mark.slow
@pytest.mark.parametrize("moments", [("any", "between"), ("any", "half", "between", "any")], ids="-".join)
def test_sigkill_at_any_moment_changes_nothing(moments: Sequence[str], hierfl: Call, tmp_path: Path) -> None:
    """Between rounds, in the middle of a checkpoint's file, and between its two files."""
    with one_figure() if len(moments) < 4 else nullcontext():
        killed_and_resumed(moments, hierfl, tmp_path)


def killed_and_resumed(moments: Sequence[str], hierfl: Call, tmp_path: Path) -> None:
    assert hierfl(*RUN[:-1], "whole", "--quiet")[0] == 0
    whole = without_clock(tmp_path / "whole")
    luck = random.Random(os.environ.get("HIERFL_TEST_LUCK", "0"))
    folder = tmp_path / "killed"

    def round_on_disk() -> int:
        path = folder / "checkpoint/checkpoint.json"
        return json.loads(path.read_text())["round"] if path.exists() else -1

    def killed(command: list[str], beyond: int | None) -> None:
        """Kills the process at some moment after it has saved a round beyond this one, or lets it kill itself."""
        with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as process:
            if beyond is not None:
                start = time.monotonic()
                while round_on_disk() <= beyond and time.monotonic() - start < 60:
                    time.sleep(0.01)
                time.sleep(luck.uniform(0, 0.2))
                process.kill()
            error = process.communicate()[1].decode()
        assert process.returncode == -signal.SIGKILL, error

    cli = [sys.executable, "-m", "hierfl"]
    suicide = [sys.executable, "-c", SUICIDE]
    resume = ["run", "--resume", "killed", "--quiet"]
    reached: list[int] = []
    for when in moments:
        if when == "any":
            killed(
                [*cli, *(resume if reached else [*RUN, "--quiet"])], reached[-1] + luck.randrange(3) if reached else 2
            )
        else:
            killed([*suicide, when, "2", *resume], None)
        reached.append(round_on_disk())
        # rows that stand in metrics.csv but not in the checkpoint must go
        with (folder / "metrics.csv").open("a") as file:
            file.write((folder / "metrics.csv").read_text().splitlines()[-1].replace(",", ",9", 1) + "\n")
    assert reached == sorted(reached)
    assert reached[0] < reached[-1] < 24
    assert hierfl(*resume)[0] == 0
    again = without_clock(folder)
    assert again.keys() == whole.keys()
    different = [name for name in whole if whole[name] != again[name]]
    assert different == []
    assert hierfl(*resume)[0] == 0  # a finished run can be resumed: nothing happens
    assert without_clock(folder) == whole


def test_resume_from_every_round_gives_the_same_state(tmp_path: Path) -> None:
    fed = blobs([12, 9, 5])
    method = PFedVEM(architecture("mlp:4", fed))
    whole = fit(method, fed, rounds=4, participation=0.7, progress=False)
    for stop in range(4):
        folder = tmp_path / str(stop)
        fit(method, fed, rounds=stop, participation=0.7, folder=folder, progress=False)
        resumed = fit(method, fed, rounds=4, participation=0.7, folder=folder, resume=True, progress=False)
        for name, value in {**whole.shared, **whole.personal, **whole.fitted.copies}.items():
            assert torch.equal(value, {**resumed.shared, **resumed.personal, **resumed.fitted.copies}[name])


def test_a_finished_fit_resumed_has_its_test_metrics(tmp_path: Path) -> None:
    """They are in the checkpoint: nothing is evaluated again, and a saved run would lose them otherwise."""
    fed = blobs([12, 9, 5])
    method = PFedVEM(architecture("mlp:4", fed))
    first, again = (fit(method, fed, rounds=2, folder=tmp_path, resume=r, progress=False) for r in (False, True))
    assert first.tested is not None
    assert again.tested is not None
    for before, after in zip(first.tested, again.tested, strict=True):
        assert list(before) == list(after)
        for name in before:
            np.testing.assert_array_equal(before[name], after[name])
    assert first.clients.equals(again.clients)


def test_a_checkpoint_beyond_the_last_round_is_refused(tmp_path: Path) -> None:
    fed = blobs([12, 9, 5])
    method = FedAvg(architecture("mlp:4", fed))
    fit(method, fed, rounds=3, folder=tmp_path, progress=False)
    with pytest.raises(UserError, match="at round 3 of 2"):
        fit(method, fed, rounds=2, folder=tmp_path, resume=True, progress=False)
    with pytest.raises(UserError, match="holds torch.float32, not torch.float64"):
        fit(method, fed, rounds=4, folder=tmp_path, resume=True, progress=False, dtype=torch.float64)
    with pytest.raises(UserError, match="say where the checkpoint is"):
        fit(method, fed, rounds=4, resume=True, progress=False)


def test_nothing_of_an_old_checkpoint_is_left_behind(tmp_path: Path) -> None:
    for number in range(3):
        checkpoints.save(tmp_path, {"a": torch.full((3,), float(number))}, {"round": number})
        assert sorted(p.name for p in tmp_path.iterdir()) == [
            "checkpoint.json",
            f"state-{number:06d}.safetensors",
        ]
    state, record = checkpoints.load(tmp_path)
    assert record["round"] == 2
    assert state["a"].tolist() == [2.0, 2.0, 2.0]


def test_a_fit_is_resumed_only_as_itself(tmp_path: Path) -> None:
    fed = blobs([12, 9, 5])
    net = architecture("mlp:4", fed)
    fit(PFedVEM(net), fed, rounds=2, folder=tmp_path, progress=False)
    for method, options in (
        (PFedVEM(net), {"seed": 7}),
        (PFedVEM(net), {"participation": 0.5}),
        (PFedVEM(net, head_lr=1e-3), {}),
    ):
        with pytest.raises(UserError, match="was begun with a different"):
            fit(method, fed, rounds=4, folder=tmp_path, resume=True, progress=False, **options)
    assert fit(PFedVEM(net), fed, rounds=4, folder=tmp_path, resume=True, progress=False).last()["round"] == 4


def test_rounds_that_know_more_than_the_first(tmp_path: Path) -> None:
    """A run that was begun by an older version: what its first rounds were not asked is empty."""
    write_metrics(tmp_path, [{"round": 1, "split": "test"}, {"round": 2, "split": "test", "update_norm_w": 0.5}])
    assert (tmp_path / "metrics.csv").read_text() == "round,split,update_norm_w\n1,test,\n2,test,0.5\n"
