"""Servers and sites that are killed for real: the study goes on from what is on their disks, to the same numbers."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.parties import SERVER, Parties
from support.studies import FileStudy, formula_study, patients, write_tables

from hierfl.experiments.federate.contributions import STATUS, read_status
from hierfl.inference.run.checkpoint import load

#: seconds that a study may take
PATIENCE = 900.0


class Processes:
    """A server and its sites as processes of their own, which can be killed and begun again."""

    def __init__(self, study: Path, files: dict[str, Path], folder: Path, parties: Parties) -> None:
        self.study, self.files, self.folder = study, files, folder
        self.file_study = FileStudy(study, files, folder, parties)  # who approves the study at every site
        parties.server.save(folder / SERVER)
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def begin(self, name: str) -> None:
        """Starts the server, or a site."""
        exchange = ("--exchange", str(self.folder / "exchange"), "--quiet")
        if name == "server":
            out = self.folder / "server"
            home = str(self.folder / SERVER)
            arguments = ["server", str(self.study), "--home", home, "--out", str(out), *exchange]
            arguments += ["--resume"] if (out / "study.toml").is_file() else []
        else:
            arguments = ["site", str(self.folder / name), *exchange]
        log = open(self.folder / f"{name}.log", "ab")  # noqa: SIM115
        with log:
            command = [sys.executable, "-m", "hierfl", "federate", *arguments]
            state = str(self.file_study.account(name))
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "HIERFL_STATE": state}
            self.running[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def kill(self, name: str) -> None:
        """As a power failure would."""
        self.running[name].send_signal(signal.SIGKILL)
        self.running[name].wait()

    def end(self) -> None:
        """Ends all of them."""
        for process in self.running.values():
            process.kill()
            process.wait()


@contextmanager
def processes(study: Path, files: dict[str, Path], folder: Path, parties: Parties) -> Iterator[Processes]:
    """All of them, started."""
    folder.mkdir()
    deployment = Processes(study, files, folder, parties)
    try:
        for name in ("server", *files):
            deployment.begin(name)
        yield deployment
    finally:
        deployment.end()


def wait_for_round(deployment: Processes, end: float) -> None:
    """Waits until the study is a round further: whoever was killed is back then, however fast the machine is."""
    before = round_of(deployment)
    while round_of(deployment) <= before:
        assert time.monotonic() < end, f"round {before} has not ended"
        time.sleep(0.02)


def round_of(deployment: Processes) -> int:
    """Where the study is; -1 before its first question."""
    folder = deployment.folder / "server"
    if not (folder / STATUS).is_file():
        return -1
    status = read_status(folder)
    assert status["ended"] is None, "the study has ended before all kills"
    return int(status["round"])


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
def test_twenty_kills_change_nothing(masked: bool, tmp_path: Path) -> None:
    """``kill -9`` of the server and of sites at random moments; whoever was killed is begun again, and awaited."""
    own, given = write_tables(patients(3), tmp_path / "data"), dict[str, Any]()
    if masked:  # each stage would have to be at three sites
        given = {"masked": True, "parties": Parties.of(own), "formula": "y ~ center(age) + (1 | site)"}
    # Until a step is exactly zero, after some ten rounds: fewer than those that are waited for below.
    settings = {"draws": 0, "tol": 1e-300}
    study = formula_study(tmp_path, own, rounds=60, evaluate_every=20, settings=settings, **given)
    plain = FileStudy(study, own, tmp_path / "plain", given.get("parties"))
    plain.serve()
    rng, end = random.Random(0), time.monotonic() + PATIENCE
    with processes(study, own, tmp_path / "killed", plain.parties) as deployment:
        name = "server"
        for kill in range(20):
            if kill % 3 == 2:
                wait_for_round(deployment, end)
                time.sleep(rng.uniform(0.0, 0.03))
                name = rng.choice(list(deployment.running))
            else:  # once more, while it starts
                time.sleep(rng.uniform(0.1, 0.5))
            status = deployment.running[name].poll()
            assert status is None, (status, (tmp_path / "killed" / f"{name}.log").read_text())
            deployment.kill(name)
            deployment.begin(name)
        for name, process in deployment.running.items():
            assert process.wait(max(1.0, end - time.monotonic())) == 0, (
                tmp_path / "killed" / f"{name}.log"
            ).read_text()
    assert read_status(tmp_path / "killed" / "server")["ended"] == "all rounds are done"
    at = plain.site_folder("h00").name
    for name in own:
        folders = [tmp_path / part / name / "studies" / at for part in ("killed", "plain")]
        mine, theirs = (load_file(folder / "site.safetensors") for folder in folders)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(value, mine[key]) for key, value in theirs.items())
    shared, expected = (load(tmp_path / part / "server" / "checkpoint")[0] for part in ("killed", "plain"))
    assert shared.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(shared[key], value, rtol=0, atol=0, msg=lambda text, key=key: f"{key}: {text}")
    effects = [(tmp_path / part / "server" / "effects.csv").read_text() for part in ("killed", "plain")]
    assert effects[0] == effects[1]


@pytest.mark.slow
def test_a_study_by_hand_over_several_processes(tmp_path: Path) -> None:
    """Server and sites as they are started at real places; who starts late is awaited."""
    own = write_tables(patients(4), tmp_path / "data")
    study = formula_study(tmp_path, own)
    with processes(study, own, tmp_path / "study", Parties.of(own)) as deployment:
        for name, process in deployment.running.items():
            assert process.wait(300) == 0, (tmp_path / "study" / f"{name}.log").read_text()
    plain = FileStudy(study, own, tmp_path / "plain")
    plain.serve()
    effects = [(tmp_path / part / "server" / "effects.csv").read_text() for part in ("study", "plain")]
    assert effects[0] == effects[1]
