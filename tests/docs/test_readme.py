"""What the README shows runs as it is there."""

from __future__ import annotations

import math
import re
import runpy
import textwrap
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.gallery import load

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = {kind: re.findall(rf"^```{kind}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE) for kind in ("python", "sh")}


def test_the_first_screen_has_the_commands_a_picture_and_the_alternatives() -> None:
    assert len(BLOCKS["python"]) == 1
    first = "\n".join(README.splitlines()[:35])
    assert first.count("```sh") == 2
    assert "](docs/images/" in first
    assert "pip install torch torchvision --index-url URL" in first
    for word in ("lme4", "Flower", "PFLlib", "statistician", "engineer", "researcher"):
        assert word in first


def test_the_tables_of_results_are_those_of_committed_runs() -> None:
    figures = {"pm_accuracy": (100, 1), "gm_accuracy": (100, 1), "pm_nll": (1, 3), "pm_ece": (1, 3)}
    runs = pd.read_csv(ROOT / "experiments/results/digits/table/runs.csv")
    table = README.partition("over seven seeds, last round:")[2].partition("[All 34 rows")[0]
    shown = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")][2:]
    assert len(shown) > 10
    for name, *values in shown:
        own = runs[runs.method == name.replace("(this project)", "").strip(" *").lower()]
        assert len(own) == 7, name
        for value, (figure, (scale, digits)) in zip(values, figures.items(), strict=True):
            mean, error = scale * own[figure].mean(), scale * own[figure].sem()
            assert value.strip() == ("" if math.isnan(mean) else f"{mean:.{digits}f} ± {error:.{digits}f}"), name
    runs = pd.read_csv(ROOT / "experiments/results/fashion-mnist/pfedhb/runs.csv")
    own = 100 * runs[runs.method == "pfedhb"]
    pm, gm = (f"{own[figure].mean():.2f} ± {own[figure].sem():.2f}" for figure in ("pm_accuracy", "gm_accuracy"))
    assert f"| **PFedHB** (five seeds) | {pm} | | {gm} | |" in README


def test_there_are_two_commands() -> None:
    assert [len(block.splitlines()) for block in BLOCKS["sh"]] == [1, 1]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The names that the README's program leaves."""
    path = tmp_path_factory.mktemp("readme") / "shown.py"
    path.write_text(BLOCKS["python"][0], encoding="utf-8")
    return runpy.run_path(str(path))


def test_the_method_learns_the_population(shown: dict[str, Any]) -> None:
    run = shown["run"]
    floor, uranium, intercept = run.shared["w"].tolist()
    # simulated with -0.7, 0.7 and 1.45; uranium differs between counties alone, and is hard to tell from their effects
    assert floor == pytest.approx(-0.7, abs=0.2)
    assert intercept == pytest.approx(1.45, abs=0.2)
    assert 0 < uranium < 1
    assert 0.1 < float(run.shared["log_rho"].exp()) < 0.5
    assert run.last()["pm_rmse"] < 0.8


def test_every_client_has_a_posterior(shown: dict[str, Any]) -> None:
    run = shown["run"]
    posterior = run.posterior().posterior["w_j"]
    assert posterior.dims == ("chain", "draw", "client", "w_j_dim_0")
    assert posterior.sizes["client"] == 85
    houses = shown["houses"][:3]
    # Of a few hundred draws alone neither is known well enough to tell them apart.
    inputs = houses[["floor", "log_uranium"]].to_numpy()
    mean, spread = run.predict(inputs, client="county-07", draws=20_000)[0].tolist()
    _, of_new = run.predict_new_client(inputs, draws=20_000)[0].tolist()
    assert 0.5 < mean < 3
    assert 0.75 < spread < of_new  # the residual's, the client's own uncertainty, the population's


@pytest.mark.cpu(3, "a fit")
def test_the_plain_model_is_fitted() -> None:
    """The schools of its names have the published means."""
    text = README.partition("## Any Pyro model")[2].partition("## Commands")[0]
    program = textwrap.dedent("\n".join(line for line in text.splitlines() if line.startswith("    ")))
    start = "import hierfl, pyro\nfrom pyro.distributions import HalfCauchy, Normal\n"
    schools = load("eight_schools").data().rename(columns={"y": "effect", "sigma": "error"})
    names: dict[str, Any] = {"schools": schools}
    exec(f"{start}{program}", names)
    # posteriordb: 4.4 and 3.6, with sds of 3.3 and 3.2; 1,000 draws.
    assert names["fitted"].globals["mu"].mean() == pytest.approx(4.4, abs=0.4)
    assert names["fitted"].globals["tau"].mean() == pytest.approx(3.6, abs=0.4)


def test_links_point_to_files() -> None:
    pages = [
        *(ROOT / f"{name}.md" for name in ("README", "SECURITY", "CONTRIBUTING")),
        *sorted((ROOT / "docs").glob("*.md")),
    ]
    lost = []
    for page in pages:
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if "://" not in target and not (page.parent / target).exists():
                lost.append(f"{page.name}: {target}")
        lost += [f"{page.name}: {name}" for name in re.findall(r"\{doc\}`(\w[\w-]*)`", text)
                 if not (ROOT / "docs" / f"{name}.md").exists()]  # fmt: skip
        # code and results that are named by their path
        for path in re.findall(r"`((?:hierfl|inference|models|experiments|tests|docs)/[\w./-]+)`", text):
            if "METHOD" not in path and not list(ROOT.glob(f"{path.rstrip('/')}*")):
                lost.append(f"{page.name}: {path}")
    assert not lost
