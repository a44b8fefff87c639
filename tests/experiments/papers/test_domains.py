"""pFedV's tables: accuracy by domain, differences paired by seed, models of one domain, a client of a new domain."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from support.commands import command

from hierfl import UserError
from hierfl.data.datasets.registry import load
from hierfl.experiments.papers import unseen
from hierfl.experiments.papers.cells import table_cell
from hierfl.experiments.papers.definition import EntryKey
from hierfl.experiments.papers.read_definition import shipped
from hierfl.inference import Run
from hierfl.inference.method.settings import make_settings
from hierfl.models import PFedHB


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A digit-three of tiny pictures, as a file of the user's own."""
    monkeypatch.chdir(tmp_path)
    rng, n = np.random.default_rng(0), 240
    y, who = np.arange(n) % 4, np.repeat(["mnist", "mnist-m", "synthetic-digits"], n // 3)
    x = rng.integers(0, 256, (n, 3, 4, 4), dtype=np.uint8)
    np.savez(
        "digit-three.npz", x_train=x, y_train=y, x_test=x[::3], y_test=y[::3], client_train=who, client_test=who[::3]
    )
    return ["--data-root", ".", "--split", "domains:20", "--network", "bncnn:2,2:4", "--rounds", "1", "--out", "t"]


def test_accuracy_by_domain_and_paired_differences(tiny: list[str], capsys: pytest.CaptureFixture) -> None:
    some = ["--data", "digit-three", "--methods", "fedavg,fedv,fedv-gaussian-prior", "--seeds", "2"]
    command("table", "pfedv-2", *tiny, *some, "--set", "alpha=0.1")
    made = json.loads(Path("t/table.json").read_text())
    rows = {(row["method"], row["data"]): row for row in made["rows"] if "ours" in row}
    assert len(rows) == 9
    assert rows["fedv", "mnist"]["setting"]["settings"]["alpha"] == 0.1
    assert rows["fedv-gaussian-prior", "mnist"]["setting"]["settings"]["prior"] == "fixed"
    accuracy = {}
    for method in ("fedv", "fedavg"):
        seen = [pd.read_csv(f"t/digit-three-3-{method}-{seed}/clients.csv") for seed in (0, 1)]
        accuracy[method] = 100 * np.array([frame["accuracy"] for frame in seen])  # seeds, domains
    assert rows["fedv", "mnist-m"]["ours"] == pytest.approx(accuracy["fedv"][:, 1].mean())
    claims = {(c["better"], c["worse"]): c for c in made["differences"]}
    assert set(claims) == {("fedv", "fedv-gaussian-prior"), ("fedv", "fedavg")}
    gap = (accuracy["fedv"] - accuracy["fedavg"]).mean(1)
    assert claims["fedv", "fedavg"]["mean"] == pytest.approx([gap.mean(), gap.std(ddof=1) / 2**0.5])
    assert "| 98.9 |" not in capsys.readouterr().out  # published of five domains, not of these
    stamps = {p: p.stat().st_mtime_ns for p in Path("t").glob("*/summary.json")}
    assert len(stamps) == 6
    command("table", "pfedv-2", *tiny, *some, "--set", "alpha=0.1")
    assert stamps == {p: p.stat().st_mtime_ns for p in Path("t").glob("*/summary.json")}
    with pytest.raises(UserError, match=r"alpha = 0.1, but this table wants 0.5"):
        command("table", "pfedv-2", *tiny, *some)
    with pytest.raises(UserError, match="prior is what tells cells of pfedv-2 apart"):
        command("table", "pfedv-2", *tiny, *some, "--set", "prior=flat")


STEPS = {"epochs": 1, "lr": 0.01, "batch": 32, "momentum": 0.0}


def test_rows_are_what_their_names_say() -> None:
    """The whole configuration of each, so that nothing else differs."""
    plain = {"init_scale": 0.1, "server_lr": 1.0}
    network = {**plain, "server_momentum": 0.0, "lr_decay": 1.0}
    latent = {"prior": "hierarchical", "alpha": 0.5, "kl": "mean", "prior_norm": "batch", "init_scale": 0.1}
    latent |= {"local_norm": "nothing", "sd_min": 0.0, "bn_refresh_epochs": 0}
    fola = {"c": 0.5, "clip": 10.0, "fisher": "data", "epsilon": 1e-5, "scale": 1.0, "sigma": 0.003}
    wanted = {
        "local": ("local", {"init_scale": 0.1}),
        "fedavg": ("fedavg", {**network, "average": 1}),
        "fedbn": ("fedbn", {**network, "local_norm": "all", "bn_refresh_epochs": 0}),
        "fedbn-statistics": ("fedbn", {**network, "local_norm": "statistics", "bn_refresh_epochs": 0}),
        "fedbn-re-estimated": ("fedbn", {**network, "local_norm": "all", "bn_refresh_epochs": 1}),
        "fola": ("fola", {**plain, **fola, "bn_refresh_epochs": 0}),
        "fola-own-statistics": ("fola", {**plain, **fola, "bn_refresh_epochs": 1}),
        "fedv-flat": ("fedv", {**latent, "prior": "flat"}),
        "fedv-gaussian-prior": ("fedv", {**latent, "prior": "fixed"}),
        "fedv": ("fedv", latent),
        "pfedv-flat": ("pfedv", {**latent, "prior": "flat"}),
        "pfedv-noise-only": ("pfedv", {**latent, "alpha": 1e-9}),
        "pfedv-own-norm": ("pfedv", {**latent, "local_norm": "all"}),
        "pfedv-own-norm-re-estimated": ("pfedv", {**latent, "local_norm": "all", "bn_refresh_epochs": 1}),
        "pfedv-gaussian-prior": ("pfedv", {**latent, "prior": "fixed"}),
        "pfedv": ("pfedv", latent),
    }
    table, runs = shipped("pfedv-2"), []
    ours = {"pfedhb": {}, "pfedhb-own-norm": {"local_norm": "all"}}
    ours |= {"pfedhb-own-norm-features": {"local_norm": "all", "features": "on"}}
    assert {*wanted, *ours, "fedprox"} == set(table.methods)
    for row, settings in ours.items():
        config = table_cell(table, EntryKey("digit-three", 3, "", row), 3).config({"rounds": 20})
        assert (config.run.method, config.settings) == ("pfedhb", vars(make_settings(PFedHB, {**STEPS, **settings})))
    for row, (method, settings) in wanted.items():
        config = table_cell(table, EntryKey("digit-three", 3, "", row), 3).config({"rounds": 20})
        run = config.run.as_table()
        assert run.pop("method") == method
        del run["method_digest"]  # of the method's file
        assert config.settings == {**STEPS, **settings}, row
        runs.append(run)
        tuned = table_cell(table, EntryKey("digit-three", 3, "", row), 3, {"lr": 0.02}).config({}).settings
        assert tuned["lr"] == 0.02
    assert all(run == runs[0] for run in runs)
    assert runs[0]["validation_fraction"] == 0
    assert runs[0]["participation"] == 1


def test_models_of_one_domain_are_asked_of_all(tiny: list[str], capsys: pytest.CaptureFixture) -> None:
    how = ["table", "pfedv-1", *tiny, "--data", "digit-three"]
    command(*how)
    rows = {(r["condition"], r["data"]): r for r in json.loads(Path("t/table.json").read_text())["rows"]}
    own = rows["trained on mnist, digit-three", "mnist-m"]
    assert 0 <= own["ours"] <= 100
    assert sum("ours" in row for row in rows.values()) == 9
    assert rows["trained on svhn", "usps"]["why"].startswith("not on this disk: mnist, svhn")
    capsys.readouterr()
    command(*how)  # what is there is not run again
    assert "digit-three, seed 0" not in capsys.readouterr().err


def test_what_the_new_client_is_shown(tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Training examples of its domain, as many steps for few as for many; nothing of it in the federation."""
    pool = load("digit-three", Path())
    rest, new = unseen.without(pool, "mnist-m")
    other = pool.client_train != "mnist-m"
    assert np.allclose(np.ravel(rest.mean), pool.x_train[other].mean((0, 2, 3)) / 255, rtol=1e-5)
    assert (new["x_test"] == pool.x_test[pool.client_test == "mnist-m"]).all()
    shown = []

    def spy(self: object, x: torch.Tensor, draws: int, given: tuple = (), rounds: int = 0) -> torch.Tensor:
        shown.append((x, given, rounds, self.fitted.federation))  # type: ignore[attr-defined]
        return torch.ones((len(x), 4))

    monkeypatch.setattr(Run, "predict_new_client", spy)
    run = {"split": "domains:20", "network": "bncnn:2,2:4", "rounds": 1}
    unseen.serve("pfedv", rest, new, 0, (5, 40), 7, {"data": "digit-three", "run": run, "settings": {}})
    own = {x.tobytes(): y for x, y in zip(new["x"], new["y"], strict=True)}
    for (x, given, rounds, federation), number, epochs in zip(shown, (5, 40), (7, 4), strict=True):
        assert (x.numpy() == new["x_test"]).all()
        assert [own[image.numpy().tobytes()] for image in given[0]] == given[1].tolist()
        assert len({image.numpy().tobytes() for image in given[0]}) == number
        assert rounds == epochs  # of one step, and of two
        assert not set(federation.ids) & {"mnist-m"}
        assert np.allclose(np.ravel(federation.mean), np.ravel(rest.mean))


def test_a_domain_that_was_left_out(tiny: list[str], capsys: pytest.CaptureFixture) -> None:
    how = ["table", "pfedv-new-client", *tiny, "--conditions", "mnist-m", "--seeds", "2", "--set", "examples=5,20"]
    how += ["--set", "steps=3"]
    rows = ["--methods", "fedavg,fedbn,pfedv"]
    command(*how, *rows)
    made = json.loads(Path("t/mnist-m/unseen.json").read_text())
    cells = {(cell["method"], cell["seed"]): cell["accuracy"] for cell in made["cells"]}
    assert len(cells) == len(made["cells"]) == 6
    assert cells["fedavg", 1].keys() == {"0"}
    assert cells["fedbn", 0].keys() == cells["pfedv", 1].keys() == {"5", "20"}
    table = {(r["method"], r["condition"]): r for r in json.loads(Path("t/table.json").read_text())["rows"]}
    assert table["pfedv", "20 examples"]["ours"] == pytest.approx(
        100 * np.mean([cells["pfedv", s]["20"] for s in (0, 1)])
    )
    capsys.readouterr()
    command(*how, "--methods", "fedv")  # one more method; what is there is not run again
    again = capsys.readouterr().err
    assert again.count("fedv") == 2
    assert "pfedv" not in again
    for more, words in (
        (["--conditions", "svhn", "--out", "s"], "no domain 'svhn'"),
        (["--methods", "local"], "unknown row of this table 'local'"),
        (["--set", "steps=0"], "steps is set twice"),
        (["--rounds", "2"], "its rounds is 1, not 2"),
        (["--set", "prior=flat"], "prior is what tells"),
        (["--budget", "1"], "without --clients and --budget"),
    ):
        with pytest.raises(UserError, match=words):
            command(*how, *more)
    Path("t/mnist-m/unseen.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        command(*how, *rows)
