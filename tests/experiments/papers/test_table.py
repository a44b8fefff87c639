"""A paper's table: cells are run once, resumed, collected beside published numbers."""

from __future__ import annotations

import csv
import json
import shutil
from contextlib import chdir
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from support.commands import Call
from support.drawing import one_figure
from support.once import Once

from hierfl import UserError
from hierfl.experiments.papers.cells import table_cell
from hierfl.experiments.papers.definition import EntryKey
from hierfl.experiments.papers.make_table import make_table
from hierfl.experiments.papers.published import numbers_of, published_numbers
from hierfl.experiments.papers.read_definition import names, shipped
from hierfl.experiments.papers.written import _how
from hierfl.file_lock import locked
from hierfl.models import METHODS, PFedVEM

SMALL = {"rounds": 2, "network": "mlp:4", "participation": 1.0, "data_root": "."}


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with that data set."""
    monkeypatch.chdir(tmp_path)
    images()
    return tmp_path


def images() -> None:
    """A fashion-mnist of 200 tiny images, here."""
    rng = np.random.default_rng(0)
    y = np.arange(200) % 10
    x = rng.integers(0, 256, (200, 4, 4), dtype=np.uint8)
    np.savez("fashion-mnist.npz", x_train=x[50:], y_train=y[50:], x_test=x[:50], y_test=y[:50])


def table(**part: object) -> list[dict]:
    options = {"data": ["fashion-mnist"], "clients": [4], "methods": ["local", "pfedvem"], "seeds": 2, "extra": SMALL}
    return make_table("pfedvem-1", Path("t"), **{"progress": False, **options, **part})  # type: ignore[arg-type]


def make(folder: Path) -> None:
    """A table of one seed, finished, and its data."""
    with chdir(folder), one_figure():
        images()
        table(seeds=1)


@pytest.fixture
def begun(once: Once, tiny: Path) -> Path:
    """A working folder where cells of both methods have been run with one seed."""
    shutil.copytree(once("a paper's table", make) / "t", tiny / "t")
    return tiny


def test_cells_are_run_once_and_averaged_over_seeds(tiny: Path) -> None:
    rows = table()
    by_method = {(r["method"], r["model"]): r for r in rows}
    assert set(by_method) == {("local", "PM"), ("pfedvem", "PM"), ("pfedvem", "GM")}
    accuracies = [
        json.loads((tiny / f"t/fashion-mnist-4-pfedvem-{s}/summary.json").read_text())["pm_accuracy"] for s in (0, 1)
    ]
    row = by_method["pfedvem", "PM"]
    assert row["ours"] == pytest.approx(100 * np.mean(accuracies))
    assert row["ours_sem"] == pytest.approx(100 * np.std(accuracies, ddof=1) / 2**0.5)
    assert row["seeds"] == 2
    assert row["setting"]["run"]["validation_fraction"] == 0
    stamps = {p: p.stat().st_mtime_ns for p in tiny.glob("t/*/summary.json")}
    assert table() == rows
    assert stamps == {p: p.stat().st_mtime_ns for p in tiny.glob("t/*/summary.json")}
    lines = csv.DictReader((tiny / "t/table.csv").read_text().splitlines())
    assert [line["ours"] for line in lines if line["ours"]] == [str(row["ours"]) for row in rows]
    written = json.loads((tiny / "t/table.json").read_text())["rows"]
    assert [row for row in written if "ours" in row] == rows


def test_an_interrupted_cell_goes_on_where_it_was(begun: Path) -> None:
    rows = table(seeds=1)
    cell = begun / "t/fashion-mnist-4-pfedvem-0"
    (cell / "summary.json").unlink()
    (cell / "posterior.nc").unlink()
    assert [r["ours"] for r in table(seeds=1)] == [r["ours"] for r in rows]
    assert (cell / "posterior.nc").is_file()
    # killed before its configuration was written
    shutil.rmtree(cell)
    cell.mkdir()
    assert [r["ours"] for r in table(seeds=1)] == [r["ours"] for r in rows]


def test_a_run_that_is_older_than_a_setting_had_its_default(begun: Path) -> None:
    rows = table(seeds=1)
    path = begun / "t/fashion-mnist-4-pfedvem-0/config.toml"
    path.write_text("\n".join(line for line in path.read_text().splitlines() if not line.startswith("momentum")))
    assert [r["ours"] for r in table(seeds=1)] == [r["ours"] for r in rows]
    path.write_text(path.read_text().replace("particles = 5", "particles = 4"))
    with pytest.raises(UserError, match="with particles = 4, but this table wants 5"):
        table(seeds=1)


def test_where_a_cell_was_run_makes_no_difference(tiny: Path) -> None:
    rows = table(methods=["local"])
    path = tiny / "t/fashion-mnist-4-local-1/config.toml"
    path.write_text(path.read_text().replace("chunk = 0", "chunk = 3").replace("best of", "finest of"))
    assert "finest of" in path.read_text()
    assert [r["ours"] for r in table(methods=["local"])] == [r["ours"] for r in rows]


def test_a_finished_run_that_is_no_cell_of_the_table_is_left_out(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    table(seeds=1, methods=["local"])
    path = tiny / "t/fashion-mnist-4-local-0/config.toml"
    path.write_text(path.read_text().replace("lr = 0.003", "lr = 0.5"))
    assert not [r for r in table(seeds=1, methods=["local"], collect=True) if "ours" in r]  # with --quiet, too
    assert "left out: fashion-mnist, 4 clients, local, seed 0" in caplog.text
    with pytest.raises(UserError, match="was run with lr = 0.5"):
        table(seeds=1, methods=["local"])


def test_files_hold_all_that_has_finished_whatever_part_was_asked_for(begun: Path) -> None:
    table(seeds=1)
    table(seeds=1, methods=["local", "local"])
    rows = json.loads((begun / "t/table.json").read_text())["rows"]
    assert {r["method"] for r in rows if "ours" in r} == {"local", "pfedvem"}
    text = (begun / "t/table.md").read_text()
    assert "- pfedvem: 2 rounds, " in text
    assert "kB a message; best of" in text
    assert "server_lr=0.5" in text


def test_a_cell_goes_on_where_the_data_are_now(tiny: Path) -> None:
    table(seeds=1, methods=["local"])
    (tiny / "t/fashion-mnist-4-local-0/summary.json").unlink()
    (tiny / "elsewhere").mkdir()
    (tiny / "fashion-mnist.npz").rename(tiny / "elsewhere/fashion-mnist.npz")
    table(seeds=1, methods=["local"], extra={**SMALL, "data_root": "elsewhere"})
    assert str(tiny / "elsewhere") in (tiny / "t/fashion-mnist-4-local-0/config.toml").read_text()


def test_another_run_in_a_cells_folder_is_refused_and_the_other_cells_go_on(tiny: Path) -> None:
    table(seeds=1, methods=["local"])
    with pytest.raises(
        UserError, match="1 of 2 cells could not be run; .* was run with rounds = 2, but this table wants 3"
    ):
        table(seeds=1, extra={**SMALL, "rounds": 3})
    assert (tiny / "t/fashion-mnist-4-pfedvem-0/summary.json").is_file()


def test_a_cell_that_another_process_runs_is_left_to_it(tiny: Path) -> None:
    (tiny / "t").mkdir()
    with locked(tiny / "t/.fashion-mnist-4-local-0.lock", ""):
        rows = table(seeds=1)
    assert {r["method"] for r in rows if r.get("ours")} == {"pfedvem"}


def test_published_numbers_stand_beside_ours(tiny: Path, hierfl: Call) -> None:
    theirs = published_numbers("pfedvem", "1")
    assert len(theirs) == 168
    assert theirs[EntryKey("fashion-mnist", 100, "", "pfedvem"), "PM"].value == 91.4
    assert theirs[EntryKey("cifar10", 100, "", "pfedvem"), "GM"].value == 60.1
    assert all(0 < p.value < 100 and 0 <= p.sem < 5 for p in theirs.values())
    code, out, _ = hierfl("table", "pfedvem-1", "--collect", "--data", "cifar10")
    assert code == 0
    assert "J = 50, ours | published | difference | J = 100, ours | published | difference" in out
    assert "| pfedvem | PM |  | 73.2 ± 0.2 |  |  | 71.9 ± 0.1 |" in out
    assert "| pfedhb | PM |  |  |" in out
    assert "Not run: cifar10: not on this disk: cifar10 (45 numbers)." in out
    assert (tiny / "runs/table-pfedvem-1/table.md").is_file()


def test_local_trains_for_twenty_epochs() -> None:
    config = table_cell(shipped("pfedvem-1"), EntryKey("fashion-mnist", 100, "", "local"), 0).config({})
    assert config.run.rounds * config.settings["epochs"] == 20


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "which table? known: choose-digits, "),
        (["pfedvem-9"], "unknown table 'pfedvem-9'"),
        (["pfedvem-1", "--data", "digits"], "unknown data set of pfedvem-1 'digits'"),
        (["pfedvem-1", "--methods", "ditto"], "unknown method of pfedvem-1 'ditto'"),
        (["pfedvem-1", "--clients", "0"], "numbers of clients and seeds must be at least 1"),
        (["pfedvem-1", "--seeds", "0"], "numbers of clients and seeds must be at least 1"),
        (["pfedvem-1", "--data", "sun397", "--seeds", "1"], "36 of 36 cells could not be run; the first: sun397, 50"),
    ],
)
def test_a_table_that_cannot_be_is_refused(arguments: list[str], words: str, hierfl: Call) -> None:
    code, _, err = hierfl("table", *arguments)
    assert code == 2
    assert words in err


def test_a_row_that_is_a_setting_of_another_method(tiny: Path, hierfl: Call) -> None:
    """Named as published; accuracy of all test data together; what a message had, also where not all reported."""
    short = {"split": "label-skew:5", "rounds": 2, "draws": 2, "evaluate_every": 1}
    extra = {**SMALL, **short, "participation": 0.6}
    options = {"clients": [4], "methods": ["fedpa-ft", "fedrod"], "seeds": 1, "progress": False, "extra": extra}
    options["conditions"] = ["dirichlet:0.3"]
    rows = make_table("pfedvmp-1", Path("v"), data=["fashion-mnist"], **options)  # type: ignore[arg-type]
    by_method = {(r["method"], r["model"]): r for r in rows}
    assert set(by_method) == {("fedpa-ft", "PM"), ("fedpa-ft", "GM"), ("fedrod", "PM"), ("fedrod", "GM")}
    cell = tiny / "v/fashion-mnist-4-dirichlet-0.3-fedpa-ft-0"
    summary = json.loads((cell / "summary.json").read_text())
    row = by_method["fedpa-ft", "PM"]
    assert summary["method"] == "fedpa"
    assert row["ours"] == pytest.approx(100 * summary["pm_accuracy_pooled"])
    numbers = 16 * 4 + 4 + 4 * 10 + 10 + 1  # the network's weights, and n_j
    assert row["bytes_per_message"] == 4 * numbers
    settings = row["setting"]["settings"]
    assert (settings["epochs"], settings["ft_epochs"], settings["lr"], settings["momentum"]) == (2, 10, 0.01, 0.0)
    assert row["rounds"] == 2
    text = (tiny / "v/table.md").read_text()
    assert "- fedpa-ft: 2 rounds, " in text
    code, out, _ = hierfl(
        "table", "pfedvmp-1", "--collect", "--data", "cifar10", "--methods", "gpfl", "--conditions", "dirichlet:0.3"
    )
    assert code == 0
    assert "| gpfl | PM |  | 77.8 |" in out
    assert "fedpac" not in out


def test_every_published_number_is_a_cell_of_its_table() -> None:
    """517 of them, in tables whose methods there are, by their name or as settings of another one."""
    tables = [shipped(name) for name in names()]
    assert sum(len(numbers_of(table)) for table in tables) == 517
    for table in tables:
        assert {table.variants.get(name, (name,))[0] for name in table.methods} <= METHODS.keys()
        theirs, cells = numbers_of(table), set(table.places())
        assert table.runner or "pfedhb" in table.methods or not theirs
        if table.runner == "":
            assert {key.method for key, _ in theirs} <= set(table.methods)
            assert table.by or {key for key, _ in theirs} <= cells
            assert {model for _, model in theirs} <= table.metrics.keys()


def test_settings_that_say_nothing_beside_a_fixed_prior_are_left_out() -> None:
    settings = asdict(PFedVEM.Settings(prior="fixed"))
    run = {"method": "pfedvem", "method_digest": ""}
    row = {
        "setting": {"settings": settings, "run": run}, "settings_chosen": "", "method_digests": ["a"], "rounds": 2,
        "bytes_per_message": 1e3,
    }  # fmt: skip
    shown = _how("pfedvem prior=fixed", row)
    assert "prior=fixed" in shown
    assert "tau=" not in shown
    assert _how("mine", {**row, "setting": {"settings": {}, "run": run}}).endswith("not searched on this data set")
    assert "tau=" in _how("pfedvem", {**row, "setting": {"settings": asdict(PFedVEM.Settings()), "run": run}})
