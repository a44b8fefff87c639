"""Methods on domains: cells run once, accuracy by domain, differences paired by seed."""

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
from hierfl.experiments.papers.skew.variants import VARIANTS, table_cell
from hierfl.inference import Run


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
    some = ["--row", "FedAvg", "--row", "FedV", "--row", "FedV (Gaussian prior)", "--seeds", "2", "--set", "alpha=0.1"]
    command("papers", "skew", *tiny, *some)
    made = json.loads(Path("t/skew.json").read_text())
    rows = {row["variant"]: row for row in made["rows"]}
    assert list(rows) == ["FedAvg", "FedV", "FedV (Gaussian prior)"]
    assert rows["FedV"]["setting"]["alpha"] == 0.1
    assert rows["FedV (Gaussian prior)"]["setting"]["prior"] == "fixed"
    assert list(rows["FedV"]["accuracy"]) == ["mnist", "mnist-m", "synthetic-digits"]
    claims = {(c["better"], c["worse"]): c for c in made["claims"]}
    assert set(claims) == {("FedV", "FedV (Gaussian prior)"), ("FedV", "FedAvg")}
    gap = np.subtract(*(list(rows[name]["accuracy"].values()) for name in ("FedV", "FedAvg")))  # (domains, seeds)
    mean, error = claims["FedV", "FedAvg"]["mean"]
    assert mean == pytest.approx(gap.mean())
    assert error == pytest.approx(gap.mean(0).std(ddof=1) / 2**0.5)
    said = capsys.readouterr().out
    assert "| 98.86 |" in said
    cells = [line.count("|") for line in said.splitlines() if line.startswith(("| accuracy", "|---", "| Fed"))]
    assert cells[0] == cells[1]  # (a table is one only if its second line has a cell for each column)
    draws = np.subtract(*(rows[name]["numbers"]["pm_draws_accuracy"] for name in ("FedV", "FedV (Gaussian prior)")))
    assert claims["FedV", "FedV (Gaussian prior)"]["draws"][0] == pytest.approx(draws.mean())
    assert claims["FedV", "FedAvg"]["draws"][0] == pytest.approx(
        np.mean(rows["FedV"]["numbers"]["pm_draws_accuracy"]) - np.mean(list(rows["FedAvg"]["accuracy"].values()))
    )
    stamps = {p: p.stat().st_mtime_ns for p in Path("t").glob("*/summary.json")}
    assert len(stamps) == 6
    command("papers", "skew", *tiny, *some)
    assert stamps == {p: p.stat().st_mtime_ns for p in Path("t").glob("*/summary.json")}
    with pytest.raises(UserError, match="alpha = 0.1, but this table wants 0.5"):
        command("papers", "skew", *tiny, *some[:-2])
    for path in Path("t").glob("*/config.toml"):  # where data were made, the run says so
        path.write_text(path.read_text().replace("[run]", '[run]\ndata_origin = "made"'))
    for name in ("summary.json", "clients.csv"):
        (Path("t/fedv-1") / name).unlink()
    command("papers", "skew", *tiny, *some)  # one goes on, the others are left alone
    again = json.loads(Path("t/skew.json").read_text())
    assert [row["accuracy"] for row in again["rows"]] == [row["accuracy"] for row in made["rows"]]
    path.write_text(path.read_text().replace('"made"', '"bought"'))
    with pytest.raises(UserError, match="differ in data_origin"):
        command("papers", "skew", *tiny, *some)


def test_several_clients_of_a_domain(tiny: list[str]) -> None:
    command(
        "papers", "skew", *tiny, "--row", "FedAvg", "--seeds", "1", "--clients", "6", "--split", "domain-skew:2,redraw"
    )
    (row,) = json.loads(Path("t/skew.json").read_text())["rows"]
    clients = pd.read_csv("t/fedavg-0/clients.csv")
    assert len(clients) == 6
    wanted = {}
    for name, accuracy in zip(clients["client"], clients["accuracy"], strict=True):
        wanted.setdefault(name.rpartition("-")[0], []).append(accuracy)
    assert set(wanted) <= {"mnist", "mnist-m", "synthetic-digits"}
    assert row["accuracy"] == {k: pytest.approx([np.mean(v)]) for k, v in wanted.items()}


STEPS = {"epochs": 1, "lr": 0.01, "batch": 32, "momentum": 0.0}


def test_rows_are_what_their_names_say() -> None:
    """The whole configuration of each, so that nothing else differs."""
    plain = {"init_scale": 0.1, "server_lr": 1.0}
    latent = {"prior": "hierarchical", "alpha": 0.5, "kl": "mean", "prior_norm": "batch", "init_scale": 0.1}
    latent |= {"local_norm": "nothing", "sd_min": 0.0, "bn_refresh_epochs": 0}
    fola = {"c": 0.5, "clip": 10.0, "fisher": "data", "epsilon": 1e-5, "scale": 1.0, "sigma": 0.003}
    wanted = {
        "Local": ("local", {"init_scale": 0.1}),
        "FedAvg": ("fedavg", plain),
        "FedBN": ("fedbn", {**plain, "local_norm": "all", "bn_refresh_epochs": 0}),
        "FedBN (statistics alone)": ("fedbn", {**plain, "local_norm": "statistics", "bn_refresh_epochs": 0}),
        "FedBN (statistics re-estimated)": ("fedbn", {**plain, "local_norm": "all", "bn_refresh_epochs": 1}),
        "FOLA": ("fola", {**plain, **fola}),
        "FedV (flat)": ("fedv", {**latent, "prior": "flat"}),
        "FedV (Gaussian prior)": ("fedv", {**latent, "prior": "fixed"}),
        "FedV": ("fedv", latent),
        "pFedV (flat)": ("pfedv", {**latent, "prior": "flat"}),
        "pFedV (noise only)": ("pfedv", {**latent, "alpha": 1e-9}),
        "pFedV (own batch norm)": ("pfedv", {**latent, "local_norm": "all"}),
        "pFedV (own batch norm, re-estimated)": ("pfedv", {**latent, "local_norm": "all", "bn_refresh_epochs": 1}),
        "pFedV (Gaussian prior)": ("pfedv", {**latent, "prior": "fixed"}),
        "pFedV": ("pfedv", latent),
    }
    assert wanted.keys() == VARIANTS.keys()
    runs = []
    for variant, (method, settings) in wanted.items():
        config = table_cell(variant, "digit-three", 3, {}).config({"rounds": 20})
        run = config.run.as_table()
        assert run.pop("method") == method
        del run["method_digest"]  # (of the method's file)
        assert config.settings == {**STEPS, **settings}, variant
        runs.append(run)
        said = table_cell(variant, "digit-three", 3, {"lr": 0.02, "alpha": 5.0}).config({}).settings
        assert said["lr"] == 0.02
        free = settings.get("alpha") == 0.5 and settings["prior"] != "flat"  # (not what makes the row, nor silent)
        assert said.get("alpha") == (5.0 if free else settings.get("alpha"))
    assert all(run == runs[0] for run in runs)
    assert runs[0]["validation_fraction"] == 0
    assert runs[0]["participation"] == 1


def test_what_cannot_be(tiny: list[str]) -> None:
    for more, words in (
        (["--row", "FedProx"], "unknown row of this table 'FedProx'"),
        (["--seeds", "0"], "at least 1"),
        (["--set", "alpha"], "KEY=VALUE"),
        (["--set", "prior=flat"], "tells the rows"),
        (["--data", "digits", "--split", "iid"], "of domains, as digit-three has: digits is split by iid"),
        (["--collect"], "no run of this table has finished"),
    ):
        with pytest.raises(UserError, match=words):
            command("papers", "skew", *tiny, *more)


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
    unseen.serve("pFedV", rest, new, 0, (5, 40), 7, {"data": "digit-three", "run": run, "settings": {}})
    own = {x.tobytes(): y for x, y in zip(new["x"], new["y"], strict=True)}
    for (x, given, rounds, federation), number, epochs in zip(shown, (5, 40), (7, 4), strict=True):
        assert (x.numpy() == new["x_test"]).all()
        assert [own[image.numpy().tobytes()] for image in given[0]] == given[1].tolist()
        assert len({image.numpy().tobytes() for image in given[0]}) == number
        assert rounds == epochs  # of one step, and of two
        assert not set(federation.ids) & {"mnist-m"}
        assert np.allclose(np.ravel(federation.mean), np.ravel(rest.mean))


def test_a_domain_that_was_left_out(tiny: list[str], capsys: pytest.CaptureFixture) -> None:
    how = ["papers", "unseen", *tiny, "--leave", "mnist-m", "--seeds", "2", "--examples", "5,20", "--steps", "3"]
    rows = ["--row", "FedAvg", "--row", "FedBN", "--row", "pFedV"]
    command(*how, *rows)
    made = json.loads(Path("t/unseen.json").read_text())
    cells = {(cell["method"], cell["seed"]): cell["accuracy"] for cell in made["cells"]}
    assert len(cells) == len(made["cells"]) == 6
    assert cells["FedAvg", 1].keys() == {"0"}
    assert cells["FedBN", 0].keys() == cells["pFedV", 1].keys() == {"5", "20"}
    assert all(0 <= value <= 1 for cell in cells.values() for value in cell.values())
    said = capsys.readouterr()
    assert "| pFedV |  |" in said.out
    assert f"{100 * np.mean([cells['pFedV', s]['20'] for s in (0, 1)]):.2f} ±" in said.out
    command(*how, "--row", "FedV")  # one more method; what is there is not run again
    again = capsys.readouterr()
    assert again.err.count("FedV") == 2
    assert "pFedV" not in again.err
    assert "| pFedV |  |" in again.out
    assert "| FedV |" in again.out
    for more, words in (
        (["--leave", "svhn", "--out", "s"], "no domain 'svhn'"),
        (["--row", "Local"], "unknown row of this table 'Local'"),
        (["--steps", "0"], "seeds and steps must be at least 1"),
        (["--examples", "1"], "at least 2"),
        (["--examples", "81", "--out", "s"], "mnist-m has 80 training examples; --examples asks for 81"),
        (["--rounds", "2"], "its rounds is 1, not 2"),
        (["--set", "prior=flat"], "tells the rows"),
    ):
        with pytest.raises(UserError, match=words):
            command(*how, *rows, *more)
    assert not Path("s").exists()
    Path("t/unseen.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        command(*how, *rows)
