"""A user's own table from a toml file: cells, order and budget, text, LaTeX, figures; and pFedVMP's ablations."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.commands import command

import hierfl
from hierfl import UserError
from hierfl.experiments.papers import budget, draw
from hierfl.experiments.papers.cells import table_cell
from hierfl.experiments.papers.costs import seconds_per_round
from hierfl.experiments.papers.definition import EntryKey
from hierfl.experiments.papers.make_table import definition
from hierfl.experiments.papers.read_definition import shipped
from hierfl.experiments.papers.round_cost import with_width
from hierfl.experiments.papers.summary import markdown, summary
from hierfl.experiments.papers.written import escaped
from hierfl.models import METHODS

TOML = """
title = "FedPer & FedAvg, 100% mine"
data = ["mine.npz"]
clients = [4]
methods = ["fedavg", "fedper-average", "flat"]
seeds = 2
claims = [["fedper-average", "fedavg"]]
figure = { kind = "curves" }
run = { rounds = 2, network = "mlp:4,leaky=0.1", evaluate_every = 1, validation_fraction = 0.0, split = "iid" }
settings = { epochs = 1, lr = 0.1, batch = 10, momentum = 0.0 }

[variant.fedper-average]
method = "fedper"
settings = { predict_with = "average" }

[variant.flat]
method = "pfedvmp"
settings = { prior = "flat" }
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table and its data, elsewhere than the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    y = np.arange(160) % 4
    x = np.random.default_rng(0).normal(size=(160, 6)).astype(np.float32)
    x[np.arange(160), y] += 2
    np.savez("there/mine.npz", x_train=x[40:], y_train=y[40:], x_test=x[:40], y_test=y[:40])
    (tmp_path / "there/mine.toml").write_text(TOML)
    return tmp_path / "there/mine.toml"


def test_a_table_of_ones_own(mine: Path, capsys: pytest.CaptureFixture) -> None:
    frame = hierfl.table(mine, "t")
    assert list(frame["method"]) == ["fedavg", "fedavg", "fedper-average", "flat"]
    by = frame.set_index(["method", "model"])
    # one method twice: FedPer predicting with the average is pFedVMP without centroids
    assert by.loc[("fedper-average", "PM"), "ours"] == by.loc[("flat", "PM"), "ours"]
    assert by.loc[("fedper-average", "PM"), "nll"] == by.loc[("flat", "PM"), "nll"]
    values = [json.loads(Path(f"t/mine-4-fedavg-{s}/summary.json").read_text())["pm_accuracy"] for s in (0, 1)]
    assert by.loc[("fedavg", "PM"), "ours"] == pytest.approx(100 * np.mean(values))
    (gap,) = json.loads(Path("t/table.json").read_text())["differences"]
    assert gap["mean"][0] == pytest.approx(by.loc[("flat", "PM"), "ours"] - by.loc[("fedavg", "PM"), "ours"])
    assert list(Path("t").glob("curves-mine-4*.png"))
    tex = Path("t/table.tex").read_text()
    assert r"% FedPer & FedAvg, 100% mine" in tex
    assert tex.count(r"\begin{tabular}{llrrr}") == tex.count(r"\begin{tabular}{llrrrr}") == 1
    assert tex.count(r"\end{tabular}") == 2
    assert r"fedper-average less fedavg & mine.npz, J = 4 & 2 & $" in tex
    gaps = pd.read_csv("t/differences.csv").set_index("metric")
    assert gaps.loc["PM", "mean"] == pytest.approx(gap["mean"][0])
    assert gaps.loc["PM", ["method", "less", "seeds"]].tolist() == ["fedper-average", "fedavg", 2]
    # a row that is another method with settings is called by its own name
    assert list(pd.read_csv("t/runs.csv")["method"].unique()) == ["fedavg", "fedper-average", "flat"]
    assert "mean ± standard error (seeds): PM is pm_accuracy" in Path("t/table.md").read_text()
    assert r"$\pm$" in tex
    assert escaped("-1.5") == "$-1.5$"
    assert escaped("-1.5 ± 0.1 [-2.0, +3.0]") == r"$-1.5$ $\pm$ 0.1 [$-2.0$, $+3.0$]"
    assert escaped("fedper-2 1e-5") == "fedper-2 1e-5"
    assert escaped("a_b & 5%") == r"a\_b \& 5\%"
    stamps = {p: p.stat().st_mtime_ns for p in Path("t").glob("*/summary.json")}
    command("table", str(mine), "--out", "t", "--methods", "fedavg")
    assert stamps == {p: p.stat().st_mtime_ns for p in Path("t").glob("*/summary.json")}
    assert "| mine.npz" not in capsys.readouterr().err
    for more, words in (
        (["--methods", "fedrep"], "unknown method of mine 'fedrep'"),
        (["--conditions", "x"], "unknown condition of mine 'x'"),
        (["--budget", "0"], "a number of hours above 0"),
        (["--set", "prior=fixed"], "prior is what tells cells of mine apart"),
    ):
        with pytest.raises(UserError, match=words):
            command("table", str(mine), *more)


def test_cells_with_most_to_say_come_first_until_the_budget_is_used(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = shipped("pfedvem-1")
    cells = [(p, table_cell(table, p, s)) for s in (0, 1) for p in table.places(["fashion-mnist"], [100])]
    order = [cell.name for _, cell in budget.in_order(table, cells, Path("none"), {}, Path())]
    first = [name.removeprefix("fashion-mnist-100-") for name in order]
    assert first[:4] == ["fedavg-0", "fedper-0", "pfedvem-0", "pfedhb-0"]  # headline, published, cheapest
    assert all(name.endswith("-0") for name in first[:12])
    timings = {("fashion-mnist", 100, "fedavg"): 7.0}
    key = EntryKey("fashion-mnist", 100, "", "fedavg")
    assert seconds_per_round(key, timings) == (7.0, "measured here")
    assert seconds_per_round(key, {})[1] == "measured earlier, on another machine"
    assert seconds_per_round(EntryKey("new.npz", 0, "", "fedavg"), {})[1].endswith("a guess")
    unknown = [(EntryKey("new.npz", 0, "", "fedavg"), cells[0][1])] * 2
    words = r"2 of 2 cells to run, about \d+ minutes; seconds of a round are the median of all .* a guess \(2 cells\)"
    assert re.fullmatch(words, budget.plan(unknown, Path("none"), {}, None))
    now = iter([0.0, 3599.0, 3601.0])
    left = budget.within(1.0, lambda: next(now))
    assert (left(), left()) == (True, False)
    monkeypatch.setattr("hierfl.experiments.papers.make_table.within", lambda hours: lambda: False)
    frame = hierfl.table(mine, "b", budget=1.0)
    assert set(frame["why"]) == {"not run"}
    assert not list(Path("b").glob("*/config.toml"))


def test_what_a_file_cannot_say(mine: Path) -> None:
    for old, new, words in (
        ("seeds = 2", "sedes = 2", "unknown entry 'sedes'"),
        ("seeds = 2", 'seeds = "2"', "seeds cannot be '2'"),
        ("seeds = 2", "seeds = 0", "seeds must be at least 1"),
        ("clients = [4]", "clients = [0]", "clients are whole numbers from 1"),
        ('data = ["mine.npz"]', "", "data and methods are needed"),
        ('title = "FedPer & FedAvg, 100% mine"', "", "title is missing"),
        ('"fedper-average", "fedavg"]]', '"fedper-average", "fedrep"]]', "claims: unknown method 'fedrep'"),
        ("title =", "title", "is no toml"),
        ('{ kind = "curves" }', '{ kind = "pie" }', "figure.kind is one of curves"),
    ):
        mine.write_text(TOML.replace(old, new))
        with pytest.raises(UserError, match=words):
            draw.draw(definition(mine), {}, [], Path(), Path())
    with pytest.raises(UserError, match="cannot be read"):
        definition("none.toml")


def test_how_many_published_numbers_have_been_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    row = {"data": "fashion-mnist", "clients": 100, "method": "pfedvem", "condition": "", "seeds": 1}
    rows = [
        {**row, "model": "PM", "ours": 91.4 + 1.0}, {**row, "model": "GM", "ours": 80.0},
        {**row, "model": "PM", "method": "local", "ours": 87.5 - 1.2},
        {**row, "model": "PM", "method": "pfedhb", "ours": 9},
        {**row, "model": "PM", "method": "fedper", "ours": 90.0, "rounds": 1},
    ]  # fmt: skip
    (tmp_path / "table.json").write_text(json.dumps({"table": "pfedvem-1", "rows": rows}))
    (counts,) = summary(tmp_path, tmp_path, "pfedvem-1")
    assert (counts["published"], counts["run"], counts["near"], counts["within"]) == (168, 3, 1, 2)
    assert counts["reasons"]["not on this disk: sun397"] == 42
    assert counts["reasons"]["run with fewer rounds than the table's"] == 1
    text = markdown([counts])
    assert "3 of 168 published numbers have been run: 1 within 1 point of ours, 2 within 1.5." in text
    assert text.rstrip().endswith("| unexplained |")
    with pytest.raises(UserError, match="nothing is published beside fedpop-figure-2"):
        summary(tmp_path, tmp_path, "fedpop-figure-2")


def test_rows_of_pfedvmps_ablations_and_what_is_called_otherwise_now(capsys: pytest.CaptureFixture) -> None:
    table = shipped("pfedvmp-2")
    cells = {m: table_cell(table, EntryKey("fashion-mnist", 50, "dirichlet:0.3", m), 1) for m in table.methods}
    settings = {name: cell.config({}).settings for name, cell in cells.items()}
    steps = {"epochs": 1, "lr": 0.01, "batch": 10, "momentum": 0.0}
    assert all(values.items() >= steps.items() for values in settings.values())
    assert settings["fedper"]["prior"] == "flat"
    assert settings["pfedvmp-avg"]["precision"] == "count"
    assert settings["pfedvmp"]["precision"] == "full"
    assert len({json.dumps(values) for values in settings.values()}) == len(settings)
    assert cells["pfedvmp"].given["split"] == "dirichlet:0.3,capped,keep=0.25"
    assert with_width("cnn:32,64:100,512,leaky=0.1", 128) == "cnn:32,64:100,128,leaky=0.1"
    assert table.variants["fedper"][0] in METHODS
    with pytest.raises(UserError, match="papers centroids is now hierfl table pfedvmp-2"):
        command("papers", "centroids", "--beta", "0.3")
