"""pFedVMP's table: cells run once, each row what its name says, numbers beside published ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.commands import command

from hierfl import UserError
from hierfl.experiments.papers.centroids.cost import with_width
from hierfl.experiments.papers.centroids.variants import PAPERS, VARIANTS, table_cell
from hierfl.experiments.papers.published import published_numbers

ALL_BUT_COVARIANCES = ("FedPer", "centroids at zero", "pFedVMP, equal precisions", "pFedVMP-avg")


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tiny pictures under the name of a paper's data."""
    monkeypatch.chdir(tmp_path)
    rng, n = np.random.default_rng(0), 240
    y = np.arange(n) % 4
    x = rng.integers(0, 120, (n, 1, 6, 6), dtype=np.uint8)
    x[np.arange(n), 0, y] += 120
    np.savez("fashion-mnist.npz", x_train=x, y_train=y, x_test=x[::4], y_test=y[::4])
    small = ["--clients", "4", "--network", "mlp:6,leaky=0.1", "--rounds", "6", "--keep", "0.5"]
    return ["--data-root", ".", *small, "--out", "t"]


def test_cells_and_numbers(tiny: list[str], capsys: pytest.CaptureFixture) -> None:
    command("papers", "centroids", *tiny, "--seeds", "2", "--set", "lr=0.05", "--set", "xi=0.5")
    rows = {row["variant"]: row for row in json.loads(Path("t/centroids.json").read_text())["rows"]}
    assert list(rows) == list(PAPERS)
    assert [rows[name]["setting"]["prior"] for name in rows] == ["flat", "hierarchical", "hierarchical"]
    assert [rows[name]["setting"]["precision"] for name in rows] == ["full", "count", "full"]
    assert {rows[name]["setting"]["split"] for name in rows} == {"dirichlet:0.3,keep=0.5,redraw"}
    said = capsys.readouterr().out
    for name, folder in (("FedPer", "fedper"), ("pFedVMP-avg", "pfedvmp-avg"), ("pFedVMP", "pfedvmp")):
        pooled = []
        for seed, run in enumerate(rows[name]["runs"]):
            clients = pd.read_csv(f"t/{folder}-{seed}/clients.csv")
            right = clients["accuracy"] * clients["n_test"]
            pooled.append(right.sum() / clients["n_test"].sum())
            assert run["pooled"] == pytest.approx(pooled[-1])
            assert run["cv"] == pytest.approx(clients["accuracy"].std(ddof=0) / clients["accuracy"].mean())
            assert run["rounds"] == [1, 6]
            assert run["pooled_by_round"][-1] == pytest.approx(pooled[-1])
        mean, error = 100 * np.mean(pooled), 100 * np.std(pooled, ddof=1) / 2**0.5
        assert f"| {name} | 2 | {mean:.2f} ± {error:.2f} |  |" in said  # (other data and network than the paper's)
    gaps = {(g["better"], g["worse"]): g for g in json.loads(Path("t/centroids.json").read_text())["differences"]}
    assert len(gaps) == 3
    by_seed = [[run["nll"] for run in rows[name]["runs"]] for name in ("pFedVMP", "FedPer")]
    paired = np.subtract(*by_seed)
    assert gaps["pFedVMP", "FedPer"]["nll"] == pytest.approx([paired.mean(), paired.std(ddof=1) / 2**0.5])
    assert "| pFedVMP-avg less FedPer | 2 |" in said
    kilobytes = [rows[name]["runs"][0]["bytes_per_message"] for name in rows]
    base = 4 * (36 * 6 + 6 + 1)  # weights, biases and n_j, in single precision
    messages = [base, base + 8 * 4 * (6 + 1) + 4 * 4, base + 8 * 4 * (6 + 21) + 4 * 4]
    assert kilobytes == messages  # centroids in double precision, counts in single
    assert Path("t/curve.png").stat().st_size > 5000
    stamps = {p: p.stat().st_mtime_ns for p in Path("t").glob("*/summary.json")}
    assert len(stamps) == 6
    command(
        "papers", "centroids", *tiny, "--seeds", "1", "--set", "lr=0.05", "--set", "xi=0.5", "--row",
        "centroids at zero",
    )  # fmt: skip
    assert all(p.stat().st_mtime_ns == stamp for p, stamp in stamps.items())
    again = [row["variant"] for row in json.loads(Path("t/centroids.json").read_text())["rows"]]
    assert again == ["FedPer", "centroids at zero", "pFedVMP-avg", "pFedVMP"]
    with pytest.raises(UserError, match="differ in lr: pfedvmp-diagonal-0 has 0.2"):
        command(
            "papers", "centroids", *tiny, "--seeds", "1", "--set", "lr=0.2", "--set", "xi=0.5", "--row",
            "pFedVMP, diagonal",
        )  # fmt: skip


def test_the_papers_settings() -> None:
    cells = [
        table_cell(v, "fashion-mnist", {"clients": 50, "split": "dirichlet:0.3"}, 1, {"xi": "5", "alpha": "2"})
        for v in VARIANTS
    ]
    found = {cell.row: cell.config({}).settings for cell in cells}
    steps = {"epochs": 1, "lr": 0.01, "batch": 10, "momentum": 0.0, "init_scale": 0.1}
    for name, settings in found.items():
        assert settings.items() >= steps.items()
        assert settings["xi"] == (50 if name == "FedPer" else 5)
        assert settings["alpha"] == (1 if name in ALL_BUT_COVARIANCES else 2)
    assert len({json.dumps(settings) for settings in found.values()}) == len(found)
    table = published_numbers("pfedvmp", "1", "dirichlet:0.3")
    assert table["fashion-mnist", 50, "pfedvmp", "PM"].accuracy == 95.60
    assert published_numbers("pfedvmp", "1", "dirichlet:0.1")["fashion-mnist", 50, "fedper", "PM"].accuracy == 96.43
    assert published_numbers("pfedvem", "1")["fashion-mnist", 50, "local", "PM"].accuracy == 89.2


def test_what_cannot_be(tiny: list[str]) -> None:
    for more, words in (
        (["--row", "FedProto"], "unknown row of this table 'FedProto'"),
        (["--seeds", "0"], "at least 1"),
        (["--set", "prior=flat"], "prior is what tells the rows"),
        (["--set", "precision=count"], "precision is what tells the rows"),
        (["--collect"], "no run of this table has finished"),
    ):
        with pytest.raises(UserError, match=words):
            command("papers", "centroids", *tiny, *more)


def test_what_a_round_costs(tiny: list[str], capsys: pytest.CaptureFixture) -> None:
    command("papers", "centroids", *tiny, "--cost", "3,6", "--turns", "2")
    rows = json.loads(Path("t/cost.json").read_text())["rows"]
    assert [(row["variant"], row["width"]) for row in rows] == [(v, w) for w in (3, 6) for v in PAPERS]
    assert all(len(row["seconds"]) == 2 and row["median_seconds"] > 0 for row in rows)
    base = {w: 4 * (36 * w + w + 1) for w in (3, 6)}
    full = [base[w] + 8 * 4 * (w + w * (w + 1) // 2) + 16 for w in (3, 6)]
    assert [row["bytes_per_message"] for row in rows if row["variant"] == "pFedVMP"] == full
    assert f"{full[1] / 1e3:,.0f} |" in capsys.readouterr().out
    assert with_width("cnn:32,64:100,512,leaky=0.1", 128) == "cnn:32,64:100,128,leaky=0.1"
    for more, words in ((["--cost", "0"], "at least 1"), (["--cost", "3", "--network", "linear"], "no hidden layer")):
        with pytest.raises(UserError, match=words):
            command("papers", "centroids", *tiny, *more)
