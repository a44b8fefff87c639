"""Studies whose sites have adapters of a network that a file beside study.toml holds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.federations import stays
from support.studies import FileStudy, write_tables, written
from torch import nn

from hierfl import Federation, UserError
from hierfl.experiments.federate.draft import draft
from hierfl.experiments.federate.study import Study
from hierfl.experiments.federate.study_weights import digest_of
from hierfl.inference import fit
from hierfl.inference.run.checkpoint import load
from hierfl.models import PFedVEM
from hierfl.nn.networks.build import architecture

OPTIONS = {"rounds": 2, "network": "mlp:6", "draws": 2, "evaluate_every": 2, "validation_fraction": 0.0}
COLUMNS = {"age": {"kind": "number", "least": 0, "most": 120}, "cost": {"kind": "number", "least": 0, "most": 20000}}


def weights(folder: Path, inputs: int = 1) -> Path:
    """Of mlp:6 with so many inputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        save_file(nn.Sequential(nn.Flatten(), nn.Linear(inputs, 6), nn.ReLU()).state_dict(), folder / "w.safetensors")
    return folder / "w.safetensors"


def drafted(folder: Path, own: dict[str, Path], method: str = "pfedvem", head: str = "lora:1") -> str:
    """study.toml of adapters."""
    given = {**OPTIONS, "head": head, "network_weights": str(folder / "w.safetensors")}
    return draft(method, own["h0"], list(own), "stays", given, {}, y="cost", out=folder / "study.toml")


@pytest.mark.cpu(4, "a study of three sites, and the pooled fit")
def test_sites_adapters_are_those_of_the_pooled_fit(tmp_path: Path) -> None:
    df = stays(3).rename(columns={"hospital": "site"})
    own, file = write_tables(df, tmp_path / "data"), weights(tmp_path)
    study = Study.read(written(tmp_path, drafted(tmp_path, own), COLUMNS))
    assert study.table["data"]["head"] == "lora:1"
    file_study = FileStudy(study.path, own, tmp_path)
    file_study.serve()
    pooled = Federation.from_frame(df, client="site", y="cost", x=["age"], standardise=True)
    network = architecture("mlp:6", pooled, head="lora:1", weights=file)
    run = fit(PFedVEM(network), pooled, progress=False, chunk=1, **study.table["run"])
    shared = {k.removeprefix("server/shared/"): v for k, v in load(tmp_path / "server" / "checkpoint")[0].items()}
    assert any(key.endswith(".A") or "A" in key for key in run.shared)  # what is sent of the base
    for name, value in run.shared.items():
        torch.testing.assert_close(shared[name], value, rtol=1e-4, atol=1e-5)
    kept = file_study.site_folder("h1") / "w.safetensors"
    assert digest_of(kept) == digest_of(file)  # a site's folder is complete by itself


def test_a_file_that_is_not_the_agreed_one(tmp_path: Path) -> None:
    own, file = write_tables(stays(2), tmp_path / "data", "hospital"), weights(tmp_path)
    path = written(tmp_path, drafted(tmp_path, own), COLUMNS)
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    with pytest.raises(UserError, match="is not the file of weights that"):
        Study.read(path)
    file.unlink()
    with pytest.raises(UserError, match="no file .*w.safetensors"):
        Study.read(path)


def test_what_a_draft_refuses(tmp_path: Path) -> None:
    own = write_tables(stays(2), tmp_path / "data", "hospital")
    weights(tmp_path, 2)
    with pytest.raises(UserError, match="another network than mlp:6"):
        drafted(tmp_path, own)
    weights(tmp_path)
    with pytest.raises(UserError, match="adapters"):
        drafted(tmp_path, own, "pfedeb")
    with pytest.raises(UserError, match="unknown head 'lora'"):
        drafted(tmp_path, own, head="lora")
    drafted(tmp_path, own, "fedavg", "frozen")
