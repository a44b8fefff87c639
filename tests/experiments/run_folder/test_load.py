"""A finished run from its folder alone: another machine, another month."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from support.commands import Call
from support.run_folders import Finished, arrays

import hierfl
from hierfl import UserError
from hierfl.data.datasets import registry
from hierfl.experiments import methods, trust

OWN_DATA = ("--data", "d.npz", "--split", "natural", "--rounds", 1, "--network", "mlp:4", "--quiet")
METHOD = """
from hierfl.models import FedAvg
class Mine(FedAvg):
    name = "mine"
"""


def table() -> pd.DataFrame:
    """Rows of five sites with a category."""
    rng, n = np.random.default_rng(0), 60
    who, x = np.arange(n) % 5, rng.normal(size=n)
    arm = np.array(["a", "b"])[rng.integers(0, 2, n)]
    y = 1 + x + (arm == "b") + rng.normal(size=5)[who] + rng.normal(size=n)
    return pd.DataFrame({"y": y, "x": x, "arm": arm, "site": [f"s{j}" for j in who]})


@pytest.mark.cpu(4, "a run and its posterior, the first to import ArviZ")
def test_a_run_without_its_data_predicts_as_with_them(finished: Finished, tmp_path: Path) -> None:
    folder = finished("pfedvem", tmp_path / "run")
    run, whole = hierfl.load_run(folder), hierfl.load_run(folder, rows=True)
    assert not len(run.fitted.federation.x)
    x = torch.as_tensor(registry.load("digits", Path("data")).x_test[:4])
    for draws in (0, 5):
        assert torch.equal(run.predict(x, "0", draws=draws), whole.predict(x, "0", draws=draws))
    assert torch.equal(run.predict_new_client(x, draws=5), whole.predict_new_client(x, draws=5))
    assert run.last() == whole.last()
    kept = run.posterior(draws=4, clients=["1"], rows=False)
    drawn = run.posterior().posterior["w_j"]
    assert kept.posterior["w_j"].shape == (1, 4, 1, *drawn.shape[3:])
    assert kept.posterior["w_j"].values[0, 3, 0].tolist() == drawn.sel(client="1").values[0, 3].tolist()
    assert set(np.unique(run.posterior(clients="1").log_likelihood.client.values)) == {"1"}


def test_a_loaded_run_refuses_other_scales_and_clients_as_ever(finished: Finished, tmp_path: Path) -> None:
    run = hierfl.load_run(finished("pfedvem", tmp_path / "run"))
    with pytest.raises(UserError, match="inputs reach from 0 to 16, and those of the training from 0 to 1"):
        run.predict(16 * np.ones((1, 1, 8, 8)) * np.arange(2)[:, None, None, None], "0")
    with pytest.raises(UserError, match=r"no client 'nine'.*predict_new_client"):
        run.predict(np.ones((1, 1, 8, 8)), "nine")
    with pytest.raises(UserError, match="has 200 draws, not 300"):
        run.posterior(draws=300)


def test_folders_that_cannot_be_loaded_say_why(finished: Finished, tmp_path: Path) -> None:
    folder = finished("fedavg", tmp_path / "run")
    shutil.copytree(folder, tmp_path / "begun")
    (tmp_path / "begun" / "summary.json").unlink()
    with pytest.raises(UserError, match="has not finished"):
        hierfl.load_run(tmp_path / "begun")
    shutil.rmtree(folder / "model")
    with pytest.raises(UserError, match=r"before runs kept their models: hierfl run --resume .* writes it again"):
        hierfl.load_run(folder)
    with pytest.raises(UserError, match="is not the folder of a run"):
        hierfl.load_run(tmp_path)


def test_a_method_of_a_file_is_known_by_its_digest_and_runs_where_its_user_has_run_it(
    hierfl: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hierfl import load_run

    arrays(tmp_path / "d.npz")
    (tmp_path / "mine.py").write_text(METHOD)
    assert hierfl("run", "mine.py", *OWN_DATA, "--out", "r")[0] == 0
    (tmp_path / "d.npz").unlink()
    assert load_run("r").predict(np.zeros((1, 4)), "0").shape == (1, 3)
    monkeypatch.setenv("HIERFL_STATE", str(tmp_path / "other"))
    monkeypatch.setattr(trust, "_named", set())
    methods.forget()
    with pytest.raises(UserError, match="neither named nor run before"):
        load_run("r")
    (tmp_path / "mine.py").rename(tmp_path / "moved.py")
    assert load_run("r", method="moved.py").predict(np.zeros((1, 4)), "0").shape == (1, 3)
    (tmp_path / "moved.py").write_text(METHOD + "\n")
    with pytest.raises(UserError, match="has changed since"):
        load_run("r", method="moved.py")


def test_what_predicts_given_the_rows_asks_for_them(hierfl: Call, tmp_path: Path) -> None:
    from hierfl import load_run

    arrays(tmp_path / "d.npz")
    assert hierfl("run", "pfedgp", *OWN_DATA, "--set", "steps=1", "--out", "r")[0] == 0
    with pytest.raises(UserError, match=r"needs the rows that were fitted.*rows=True"):
        load_run("r").predict(np.zeros((1, 4)), "0")
    assert load_run("r", rows=True).predict(np.zeros((1, 4)), "0").shape == (1, 3)


@pytest.mark.cpu(3, "a mixed model with its draws")
def test_a_mixed_model_comes_back(hierfl: Call, tmp_path: Path) -> None:
    from hierfl import load_run

    df = table()
    df.to_csv(tmp_path / "t.csv", index=False)
    mixed = ("run", "mixed-effects", "--data", "t.csv", "--formula", "y ~ x + arm + (1 | site)", "--quiet")
    assert hierfl(*mixed, "--out", "m")[0] == 0
    back, whole = load_run("m"), load_run("m", rows=True)
    for level in ("client", "population", "new"):
        assert back.predict(df.head(9), level).equals(whole.predict(df.head(9), level))
    assert str(back.summary()) == str(whole.summary())
    assert back.ranef().equals(whole.ranef())
    assert back.posterior().posterior.sizes["client"] == 5
    with pytest.raises(UserError, match="refit needs the rows"):
        back.refit()
    with pytest.raises(UserError, match=r"no 'client_module': it has no network; predict\(rows\)"):
        _ = back.client_module


@pytest.mark.slow
def test_a_plain_model_comes_back(hierfl: Call, tmp_path: Path, model_file: Callable[[], str]) -> None:
    from hierfl import load_run

    df = table()
    df.to_csv(tmp_path / "t.csv", index=False)
    assert hierfl("run", model_file(), "--data", "t.csv", "--group", "site", "--quiet", "--out", "a")[0] == 0
    back, whole = load_run("a"), load_run("a", rows=True)
    assert back.predict(df.head(9)).equals(whole.predict(df.head(9)))
    new = df.head(9).assign(site="new")
    assert back.predict(new, given=new).equals(whole.predict(new, given=new))
    assert str(back) == str(whole)
    assert back.client_table().equals(whole.client_table())
    with pytest.raises(UserError, match="no 'client_module': it has no network"):
        _ = back.client_module
    assert back.loo().elpd_loo == pytest.approx(whole.loo().elpd_loo, abs=1e-9)
    assert back.globals["b"].shape == whole.globals["b"].shape


@pytest.fixture
def model_file(tmp_path: Path) -> Callable[[], str]:
    """Writes a plain model."""

    def write() -> str:
        (tmp_path / "plain.py").write_text("""
import pyro, pyro.distributions as dist
def model(batch):
    b = pyro.sample("b", dist.Normal(0.0, 5.0))
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", dist.Normal(0.0, 2.0))
        with pyro.plate("data", batch.width, dim=-1):
            pyro.sample("y", dist.Normal(u + b * batch["x"], 1.0), obs=batch["y"])
""")
        return "plain.py"

    return write
