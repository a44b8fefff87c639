"""One new file is enough: the tutorial's method, in a folder of its own, against a plain install."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import Call

from hierfl import UserError
from hierfl.arviz_data import group_names, import_arviz
from hierfl.experiments.methods import load

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "student_t.py"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project installed as a user would have it: built from a copy, not editable, in a folder of its own."""
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for name in ("hierfl", "inference", "models", "experiments"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        site,
        source,
    ]
    subprocess.run(command, check=True, capture_output=True)
    return site


def run(plain: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess:
    code = "import hierfl, sys; print(hierfl.__file__); from hierfl.experiments.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=cwd, env={**os.environ, "PYTHONPATH": str(plain)},
        capture_output=True, text=True,
    )  # fmt: skip


def test_a_plain_install_has_everything(plain: Path) -> None:
    installed = {str(p.relative_to(plain)) for p in (plain / "hierfl").rglob("*") if p.is_file() and p.suffix != ".pyc"}
    for floor, prefix in (
        ("hierfl", ""),
        ("inference", "inference/"),
        ("models", "models/"),
        ("experiments", "experiments/"),
    ):
        for path in (ROOT / floor).glob("*.py"):
            assert f"hierfl/{prefix}{path.name}" in installed
        assert f"hierfl/{prefix}py.typed" in installed
    for path in (ROOT / "models/settings").glob("*.toml"):
        assert f"hierfl/models/settings/{path.name}" in installed
    assert not {p.name for p in plain.iterdir()} & {"models", "inference", "experiments"}


@pytest.mark.slow
def test_a_file_of_sixty_lines_is_a_method_of_a_plain_install(plain: Path, tmp_path: Path) -> None:
    assert len(TUTORIAL.read_text().splitlines()) <= 60
    shutil.copy(TUTORIAL, tmp_path / "my_method.py")
    done = run(plain, tmp_path, "run", "my_method.py", "--rounds", "3", "--quiet", "--out", "plain")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(plain / "hierfl/__init__.py")
    assert json.loads((tmp_path / "plain/summary.json").read_text())["gm_accuracy"] is not None


@pytest.mark.cpu(4, "three runs by command, two of which chunks tell apart")
def test_a_file_is_a_method_like_any_other(hierfl: Call, tmp_path: Path) -> None:
    shutil.copy(TUTORIAL, tmp_path / "my_method.py")
    short = ["run", "my_method.py", "--rounds", "2", "--clients", "6", "--network", "mlp:4", "--quiet"]
    # chunked like the built-in ones: the same state whatever the chunk
    for chunk in ("4", "6"):
        code, _, err = hierfl(*short, "--chunk", chunk, "--out", chunk)
        assert code == 0, err
    a, b = (json.loads((tmp_path / n / "summary.json").read_text()) for n in ("4", "6"))
    assert a["method"] == "my_method"
    assert a["pm_nll"] == pytest.approx(b["pm_nll"], rel=1e-4)
    assert a["gm_accuracy"] is not None
    # checkpointed like the built-in ones: resumed after the last round, nothing changes
    assert hierfl("run", "--resume", "4", "--quiet")[0] == 0
    assert json.loads((tmp_path / "4/summary.json").read_text()) == a
    # exported like the built-in ones
    data = import_arviz().from_netcdf(tmp_path / "4/posterior.nc")
    assert data.posterior["w_j"].dims == ("chain", "draw", "client", "w_j_dim_0")
    assert {"prior", "log_likelihood", "posterior_predictive", "observed_data", "constant_data"} <= set(
        group_names(data)
    )
    # its settings are settings like any other
    assert hierfl(*short, "--set", "df=30", "--out", "df")[0] == 0
    assert json.loads((tmp_path / "df/summary.json").read_text())["pm_nll"] != a["pm_nll"]
    assert "known: df, rho_0, lr, server_lr" in hierfl(*short, "--set", "nu=30")[2]
    # and a changed file is not resumed
    with (tmp_path / "my_method.py").open("a") as file:
        file.write("# a change\n")
    code, _, err = hierfl("run", "--resume", "4")
    assert code == 2
    assert "my_method.py has changed since 4 was begun" in err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "must define exactly one Method; it defines none"),
        ("def f(:", "SyntaxError: .*line 1"),
        ("import numpy\nnumpy.nothing", "AttributeError: .*line 2"),
        (
            "from hierfl.inference import Method\nclass A(Method): pass\nclass B(Method): pass",
            "exactly one Method; it defines A, B",
        ),
        (
            "from hierfl.inference import About, Method\nclass A(Method):\n    name = 'a'\n    about = About(name='b')",
            "UserError: A has a name in its About, 'b': leave out name = ... .line 2",
        ),
        (
            "from hierfl.inference import About, Method\nclass A(Method):\n    about = About(nam='b')",
            "TypeError: .*unexpected keyword argument 'nam'.*line 3",
        ),
    ],
)
def test_files_that_are_no_method(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(UserError, match=words) as error:
        load(str(path))
    assert "\n" not in str(error.value)


GOOD = TUTORIAL.read_text()
#: what a class states of itself, and what follows from it
STATED = {
    "local_copies": ("my", None),
    'about = About(name="heavy", what="heavy tails", stays="mu, pi")\n    local_copies': (
        "heavy", "heavy: heavy tails\nstays with a client: mu, pi\n",
    ),
    'name = "heavy"\n    about = "heavy tails"\n    family = "own"\n    order = 3\n    local_copies': ("heavy", None),
}  # fmt: skip


@pytest.mark.parametrize("text", STATED, ids=["nothing", "About", "attributes of before"])
def test_a_file_may_state_what_it_is(text: str, hierfl: Call, tmp_path: Path) -> None:
    source = GOOD.replace("import SVI, Gradient", "import SVI, About, Gradient").replace("local_copies", text)
    (tmp_path / "my.py").write_text(source)
    name, lines = STATED[text]
    assert load(str(tmp_path / "my.py")).name == name
    code, out, _ = hierfl("methods", "my.py")
    assert code == 0
    assert (lines or "setting") in out
    assert ("heavy tails" in out) == (lines is not None)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (".to_event(1))\n\n    def local", ")\n\n    def local", r"site 'w_j' has batch shape .*lacks .to_event"),
        ('param("mu")', 'param("nu")', "parameter 'nu' is asked for"),
        ('w_j = sample("w_j", StudentT(df, w, rho).to_event(1))', "w_j = w", "'w_j' is not a latent of the model"),
        ("net.base(batch.x))), obs=batch.y", "net.base(batch.x)))", "latent site 'y' of the model is not in the guide"),
        ("net.head(w_j,", "net.head(w_j - w_j.mean(-3, keepdim=True),", "mixes clients"),
        ("return [head,", "[head,", "StudentPopulation.local.. returns nothing"),
        ('"log_rho": rule', '"rho": rule', "unknown value 'rho'; known: w, log_rho"),
        ('per="example"', 'per="xample"', "unknown objective"),
        ("batch=10", "batch=0", "SVI's batch must be at least 1"),
        (
            "df = self.network, self.settings.df",
            "df = self.network, 1 / 0",
            r"ZeroDivisionError: .*\(line \d+, in model\)",
        ),
    ],
)
def test_mistakes_in_a_method_are_told_in_one_line(
    old: str, new: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hierfl.experiments.configure import configure
    from hierfl.experiments.run_folder.start import start

    assert old in GOOD
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(GOOD.replace(old, new, 1))
    with pytest.raises(UserError, match=words) as error:
        start(configure("my.py", "digits", {}, {}), None, False, False)
    assert "\n" not in str(error.value)
    assert [p.name for p in tmp_path.iterdir()] == ["my.py"]


def test_helpers_beside_the_method_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "two.py"
    path.write_text(
        "from hierfl.models import FedAvg\nclass Middle(FedAvg): pass\nclass Mine(Middle):\n    name = 'mine'\n"
    )
    loaded = load(str(path))
    assert loaded.cls.__name__ == "Mine"
    assert loaded.name == "mine"
