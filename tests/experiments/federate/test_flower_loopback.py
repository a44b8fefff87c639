"""Studies over Flower as it is deployed: TLS, node keys, processes of their own; the same numbers as by files."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.studies import FileStudy, formula_study, patients, write_tables, written

pytest.importorskip("flwr", reason="hierfl[flower] is not installed")

from support.loopback import Loopback

from hierfl.experiments.federate.contributions import read_status
from hierfl.experiments.federate.draft import draft
from hierfl.experiments.federate.guard.home import Home
from hierfl.experiments.federate.study import Study
from hierfl.inference.run.checkpoint import load

pytestmark = [
    pytest.mark.slow, pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are found by way of /proc")
]  # fmt: skip


def same(folder: Path, other: Path, study: Path, names: list[str]) -> None:
    """What the server and every site have in the end, to the bit."""
    agreed = Study.read(study)
    places = [[Home(part / name).folder_of(agreed) for part in (folder, other)] for name in names]
    pairs = [[load_file(site_folder / "site.safetensors") for site_folder in both] for both in places]
    pairs.append([load(part / "server" / "checkpoint")[0] for part in (folder, other)])
    for mine, theirs in pairs:
        assert mine.keys() == theirs.keys()
        for name, value in theirs.items():
            assert torch.equal(mine[name], value), name


def blobs_study(method: str, settings: dict, folder: Path) -> tuple[Path, dict[str, Path]]:
    """Four sites with Gaussian classes."""
    rng, files = np.random.default_rng(3), {}
    folder.mkdir()
    for j, n in enumerate((30, 14, 22, 18)):
        y = np.arange(n) % 3
        x = (rng.normal(size=(n, 4)) + 2 * np.eye(3, 4)[y]).astype(np.float32)
        files[f"s{j}"] = folder / f"s{j}.npz"
        np.savez(files[f"s{j}"], x_train=x[6:], y_train=y[6:], x_test=x[:6], y_test=y[:6])
    options = {"rounds": 2, "evaluate_every": 2, "network": "mlp:5", "draws": 3, "validation_fraction": 0.0}
    text = draft(method, files["s0"], list(files), "blobs", options, settings, out=folder / "study.toml")
    return written(folder, text), files


@pytest.mark.parametrize(
    ("method", "settings"), [("pfedvem", {"base_epochs": 1}), ("fedpop", {"final_steps": 12, "final_keep": 4})]
)
def test_networks_over_flower(method: str, settings: dict, tmp_path: Path) -> None:
    study, files = blobs_study(method, settings, tmp_path / "data")
    plain = FileStudy(study, files, tmp_path / "plain")
    plain.serve()
    (tmp_path / "flower").mkdir()
    with Loopback(study, files, tmp_path / "flower", plain.parties) as loopback:
        for name in files:
            loopback.join(name)
        loopback.serve()
        assert loopback.wait(900) == 0, loopback.log("server")
    same(tmp_path / "flower", tmp_path / "plain", study, list(files))


def test_kills_over_flower_and_nodes_that_are_not_let_in(tmp_path: Path) -> None:
    """A mixed model; ``kill -9`` of the server's app, of a site's process and of a node, each in mid-round."""
    own = write_tables(patients(4), tmp_path / "data")
    study = formula_study(tmp_path, own, rounds=5)
    plain = FileStudy(study, own, tmp_path / "plain")
    plain.serve()
    (tmp_path / "flower").mkdir()
    with Loopback(study, own, tmp_path / "flower", plain.parties) as loopback:
        for name in own:
            loopback.join(name)
        # an authority of somebody else's, a key that was never registered, none at all
        loopback.hierfl("certificates", tmp_path / "flower" / "other", "--host", "127.0.0.1")
        loopback.hierfl("keys", tmp_path / "flower" / "stranger", "--name", "stranger")
        loopback.node("h00", ca=tmp_path / "flower" / "other" / "ca.crt", called="wrong-ca")
        loopback.node("stranger")
        loopback.node("h00", key=Path(), called="no-key")
        loopback.serve()

        def at_round(number: int) -> None:
            end = time.monotonic() + 600
            path = tmp_path / "flower" / "server" / "status.json"
            while not path.is_file() or read_status(path.parent)["round"] < number:
                assert time.monotonic() < end, loopback.log("superlink")
                assert loopback.running["server"].poll() is None, loopback.log("server")
                time.sleep(0.2)

        at_round(2)
        time.sleep(1.3)
        os.kill(loopback.server_app(), signal.SIGKILL)
        assert loopback.wait(240) == 2
        assert "go on with --resume" in loopback.log("server")
        loopback.serve("--resume")
        at_round(3)
        time.sleep(0.7)
        loopback.kill("h01")
        time.sleep(3)
        loopback.work("h01")
        at_round(4)
        loopback.kill("node-h02")
        loopback.node_again("h02")
        assert loopback.wait(900) == 0, loopback.log("server")
        for name in ("wrong-ca", "node-stranger", "no-key"):
            assert loopback.running[name].poll() is not None, loopback.log(name)
    same(tmp_path / "flower", tmp_path / "plain", study, list(own))
