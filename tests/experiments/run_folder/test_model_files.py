"""`hierfl run model.py`: a file with a plain Pyro model and no method."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.commands import Call

from hierfl.arviz_io import read
from hierfl.experiments.run_folder.csv_files import read_frame
from hierfl.experiments.run_folder.summary import read_summary

MODEL = """
import pyro
import pyro.distributions as dist


def slope(x):
    return 2 * x


def model(batch):
    mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
    lam = pyro.sample("lam", dist.Normal(0.0, 1.0))
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", dist.Normal(mu, 1.0))
        with pyro.plate("data", batch.width, dim=-1):
            pyro.sample("count", dist.Normal(u + lam * slope(batch["dose"]), 0.5), obs=batch["count"])
"""
RUN = ("run", "model.py", "--data", "d.csv", "--group", "ward", "--set", "draws=200", "--quiet")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, and a table of four wards with a column that it does not read."""
    rng = np.random.default_rng(0)
    rows = [f"w{j},{i / 4},{3 + j + i / 2 + rng.normal(0, 0.5):.4f}," for j in range(4) for i in range(3 + j % 2)]
    (tmp_path / "d.csv").write_text("\n".join(["ward,dose,count,note", *rows]) + "\n")
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


@pytest.mark.cpu(5, "a run, resumed, and its page")
def test_a_model_leaves_what_a_run_leaves(hierfl: Call, files: Path) -> None:
    """And says the globals on the screen; its page is made of the same files; resumed it is the same to the bit."""
    code, out, _ = hierfl(*RUN[:-1], "--out", "r")
    assert code == 0
    assert "model on d: 4 clients" in out
    assert "lam" in out
    assert "exact: all log joints are Gaussian" in out
    folder = files / "r"
    table = read_frame(folder / "globals.csv", ("name",))
    assert table["name"].tolist() == ["mu", "lam"]
    assert table["mean"][1] == pytest.approx(1, abs=0.6)
    clients = read_frame(folder / "clients.csv", ("client",))
    assert clients.columns.tolist() == ["client", "n", "u", "u sd"]
    assert read_summary(folder)["warnings"][-1] == "exact: all log joints are Gaussian, as far as the guide reaches"
    data = read(folder / "posterior.nc")
    assert data.log_likelihood["count"].shape == (1, 200, 14)
    whole = data.posterior["u"].values
    for name in ("summary.json", "posterior.nc"):
        (folder / name).unlink()
    assert hierfl("run", "--resume", "r", "--quiet")[0] == 0
    np.testing.assert_array_equal(read(folder / "posterior.nc").posterior["u"].values, whole)
    assert hierfl("report", "r")[0] == 0
    page = (folder / "report.html").read_text()
    assert "Globals" in page
    assert "Leave-one-out" in page
    assert "at eleven clients at most" in page
    assert "The population is what a client without data" not in page
    assert "seconds a round" in page
    options = page.partition("Configuration")[2]
    assert options.count("<td>draws</td>") == 1  # those of the posterior: the run's own are of other methods


def test_a_model_that_has_changed_is_not_resumed(hierfl: Call, files: Path) -> None:
    assert hierfl(*RUN, "--out", "r", "--rounds", 1)[0] == 0
    (files / "model.py").write_text(MODEL.replace("0.5)", "0.6)"))
    code, _, err = hierfl("run", "--resume", "r")
    assert code == 2
    assert "model.py has changed since r was begun" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--model", "other"), "has no model 'other'; it has slope, model"),
        (("--formula", "count ~ 1"), "--formula is not for a model such as model: the model is the file's"),
        (("--draws", "50"), "say --set draws=N for the draws of its posterior"),
        (("--test-fraction", "0.2"), "nothing is held out"),
        (("--set", "nosuch=1"), "unknown setting of model 'nosuch'"),
        (("--group", "nosuch"), "no column 'nosuch' that names the clients"),
        (("--data", "digits"), "model needs a table"),
    ],
)
def test_what_says_nothing_of_a_model_is_refused(
    hierfl: Call, files: Path, options: tuple[str, ...], message: str
) -> None:
    code, _, err = hierfl(*RUN, *options)
    assert code == 2
    assert message in err
    assert not (files / "runs").exists()


def test_a_row_that_lacks_a_value_is_refused_or_dropped(hierfl: Call, files: Path) -> None:
    text = (files / "d.csv").read_text().splitlines()
    (files / "d.csv").write_text("\n".join([*text[:-1], "w3,0.5,,"]) + "\n")
    code, _, err = hierfl(*RUN)
    assert code == 2
    assert "column 'count' has 1 missing value" in err
    assert hierfl(*RUN, "--na", "drop", "--out", "r")[0] == 0
    assert read_frame(files / "r/clients.csv", ("client",))["left_out"].tolist() == [0, 0, 0, 1]


def test_a_file_with_several_models_asks_which(hierfl: Call, files: Path) -> None:
    (files / "model.py").write_text(MODEL.replace("def model(", "def linear("))
    code, _, err = hierfl(*RUN)
    assert code == 2
    assert "has several functions of one argument, slope, linear: say --model NAME" in err
    assert hierfl(*RUN, "--model", "linear", "--out", "r")[0] == 0
    assert 'model = "linear"' in (files / "r/config.toml").read_text()
    assert read_summary(files / "r")["method"] == "model:linear"


def test_a_model_file_has_settings_and_says_what_leaves_a_client(hierfl: Call, files: Path) -> None:
    code, out, _ = hierfl("methods", "model.py")
    assert code == 0
    assert "worth" in out
    assert "p + p (p + 1) / 2 numbers" in out


@pytest.mark.cpu(3, "two runs")
def test_models_are_not_compared_by_test_data(hierfl: Call, files: Path) -> None:
    """They hold nothing out; the folders are whole."""
    for seed in (0, 1):
        assert hierfl(*RUN, "--out", f"r{seed}", "--seed", seed)[0] == 0
    code, _, err = hierfl("compare", "r0", "r1")
    assert code == 2
    assert "r0 is of a plain model, which holds nothing out" in err


def test_a_file_runs_once_for_a_command(hierfl: Call, files: Path) -> None:
    """What it prints comes once; what is wrong with its text has one line number."""
    (files / "model.py").write_text(f"print('it runs')\n{MODEL}")
    _, out, _ = hierfl(*RUN, "--out", "r", "--rounds", 1)
    assert out.count("it runs") == 1
    (files / "model.py").write_text("def model(batch)\n    pass\n")
    _, _, err = hierfl(*RUN, "--out", "q")
    assert "SyntaxError: expected ':' (line 1)\n" in err
