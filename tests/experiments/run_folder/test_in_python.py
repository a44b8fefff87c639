"""A fit from Python leaves what `hierfl run` leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.commands import Call
from support.federations import blobs
from support.methods import network_for
from support.run_folders import Finished
from torch import Tensor, nn

import hierfl
from hierfl import UserError, inference
from hierfl.experiments.run_folder.config_file import read_config
from hierfl.models import FedAvg, PFedVEM
from hierfl.nn.architecture import Architecture
from hierfl.nn.functional import Network
from hierfl.nn.head import LinearHead

HOW: dict[str, Any] = {"rounds": 2, "progress": False}


class Mine(FedAvg):
    """A method of a program."""

    name = "mine"


class Doubled(nn.Module):
    """No layer of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.inner(x)


@pytest.mark.cpu(4, "a run with its posterior, and one of the command line")
def test_a_fit_in_python_leaves_what_a_command_leaves(finished: Finished, tmp_path: Path) -> None:
    fed = blobs([9, 7, 5], test=3)
    rows: list[int] = []
    run = hierfl.fit(PFedVEM(network_for(PFedVEM, fed)), fed, folder=tmp_path / "a" / "b",
                     observe=lambda all_rows: rows.append(len(all_rows)), **HOW)  # fmt: skip
    assert rows == [1, 2]

    def files(folder: Path) -> set[str]:
        paths = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        return {name for name in paths if not name.startswith("figures")}

    assert files(tmp_path / "a" / "b") == files(finished("pfedvem", tmp_path / "command"))
    back = hierfl.load_run(tmp_path / "a" / "b")
    assert torch.equal(back.predict(fed.x[:4], "place-01"), run.predict(fed.x[:4], "place-01"))
    whole = hierfl.load_run(tmp_path / "a" / "b", federation=fed)
    assert whole.posterior(draws=4).posterior.equals(run.posterior(draws=4).posterior)
    with pytest.raises(UserError, match="holds other data"):
        hierfl.load_run(tmp_path / "a" / "b", federation=blobs([9, 7, 6], test=3))


def test_trackers_of_a_run_are_those_of_a_command(tmp_path: Path) -> None:
    """`hierfl.fit(folder=, track=)` is the documented call; a fit that goes on has the trackers that it began with."""
    fed, folder = blobs([9, 7], test=3), tmp_path / "first"

    def fitted(rounds: int, **more: Any) -> list[list[str]]:
        hierfl.fit(FedAvg(network_for(FedAvg, fed)), fed, rounds, folder=folder, progress=False, **more)
        return [line.split(",") for line in (folder / "track.csv").read_text().splitlines()[1:]]

    with pytest.raises(UserError, match="unknown tracker 'comet'"):
        fitted(1, track=["comet"])
    assert not folder.exists()
    rows = fitted(1, track=["csv"])
    assert {row[0] for row in rows} == {"first"}
    assert {row[2] for row in rows} >= {"test", "summary"}
    evaluated = [row for row in rows if row[2] != "summary"]
    again = fitted(2, resume=True)
    assert again[: len(evaluated)] == evaluated
    assert {row[1] for row in again[len(evaluated) :]} == {"2"}
    assert [row[2:4] for row in again[len(evaluated) :]] == [row[2:4] for row in rows]


def test_it_goes_on_and_is_not_written_over(tmp_path: Path) -> None:
    fed = blobs([9, 7])

    def fitted(folder: Path | None, rounds: int = 2, **more: Any) -> Any:
        return hierfl.fit(FedAvg(network_for(FedAvg, fed)), fed, rounds, folder=folder, progress=False, **more)

    straight = fitted(None, 3)
    fitted(tmp_path / "run")
    with pytest.raises(UserError, match="exists: another folder=, overwrite=True, or resume=True"):
        fitted(tmp_path / "run")
    gone_on = fitted(tmp_path / "run", 3, resume=True)
    assert all(torch.equal(value, gone_on.shared[name]) for name, value in straight.shared.items())
    assert hierfl.load_run(tmp_path / "run").rounds == 3
    assert read_config(tmp_path / "run").run.rounds == 3
    assert fitted(tmp_path / "run", 1, overwrite=True).rounds == 1
    inference.fit(FedAvg(network_for(FedAvg, fed)), fed, 1, folder=tmp_path / "old", progress=False)
    assert fitted(tmp_path / "old", 2, resume=True).rounds == 2  # checkpoints alone


def test_commands_know_a_run_of_python(hierfl: Call, tmp_path: Path) -> None:
    from hierfl import fit, load_run

    fed = blobs([9, 7])
    fit(FedAvg(network_for(FedAvg, fed)), fed, folder=tmp_path / "run", **HOW)
    for command in (("run", "--resume", "run"), ("run", "--config", "run")):
        code, _, err = hierfl(*command)
        assert code == 2
        assert "is of a fit in Python" in err
    with pytest.raises(UserError, match=r"load_run\(folder, federation=...\)"):
        load_run(tmp_path / "run", rows=True)
    assert hierfl("report", "run", "--quiet")[0] == 0
    code, out, _ = hierfl("runs", ".")
    assert "finished" in out


@pytest.mark.cpu(3, "a run of a command, and two in Python, all in folders")
def test_runs_of_python_and_of_commands_are_compared(hierfl: Call, tmp_path: Path) -> None:
    """By the digest of their data: the same seed and rows are the same data, however they were read."""
    from hierfl import Federation, compare, fit

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 3)).astype("float32"), rng.integers(0, 2, 60)
    np.savez(tmp_path / "a.npz", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    how = ("--data", "a.npz", "--clients", "2", "--split", "iid", "--rounds", "2", "--network", "mlp:2", "--quiet")
    assert hierfl("run", "fedper", *how, "--out", "command")[0] == 0
    for seed in (0, 1):
        fed = Federation.from_npz("a.npz", clients=2, split="iid", seed=seed)
        fit(FedAvg(network_for(FedAvg, fed)), fed, folder=f"python-{seed}", seed=seed, **HOW)
    assert set(compare(["python-0", "command"]).table.over) == {"fedper"}
    with pytest.raises(UserError, match="no run of a command with the same seed has the same data"):
        compare(["python-1", "command"])


def test_a_class_and_a_module_of_a_program_are_handed_over(tmp_path: Path) -> None:
    fed = blobs([9, 7])
    with torch.random.fork_rng():
        network, again = (Architecture(Network(Doubled()), LinearHead(5, 3)) for _ in range(2))
    run = hierfl.fit(Mine(network), fed, folder=tmp_path / "run", **HOW)
    with pytest.raises(UserError, match=r"test_in_python.Mine, of no file: load_run\(folder, method=CLASS\)"):
        hierfl.load_run(tmp_path / "run")
    with pytest.raises(UserError, match="network=Architecture"):
        hierfl.load_run(tmp_path / "run", method=Mine)
    back = hierfl.load_run(tmp_path / "run", method=Mine, network=again)
    assert torch.equal(back.predict(fed.x[:4], "place-01"), run.predict(fed.x[:4], "place-01"))
