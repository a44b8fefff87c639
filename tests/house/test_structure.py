"""The ground floor: files that are read in one sitting, no circles, and registries that name each thing once."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from support.paths import ROOT

from hierfl.experiments.report.figures import CAPTIONS, PARTS
from hierfl.metrics import registry as metrics
from hierfl.nn.networks.registry import KINDS, NETWORKS
from hierfl.plots import registry as figures

FILES = sorted((ROOT / "hierfl").rglob("*.py"))


def module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, known: set[str]) -> set[str]:
    """Modules of the ground floor that a file imports, at its top, in functions or for types alone."""
    found: set[str] = set()
    package = module(path) if path.stem == "__init__" else module(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom):
            continue
        base = package.split(".")
        base = base[: len(base) - node.level + 1] if node.level else []
        source = ".".join([*base, *([node.module] if node.module else [])])
        for name in node.names:  # (a module of a package, or a name of a module)
            found |= {m for m in (f"{source}.{name.name}", source) if m in known}
    return found - {module(path)}


def test_no_circles() -> None:
    known = {module(path) for path in FILES if path.stem != "__init__"}
    graph = {module(path): imported(path, known) for path in FILES if path.stem != "__init__"}
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"a circle: {' -> '.join(error.args[1])}")
    assert len(order) == len(known) > 80


def test_files_are_short() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in FILES}
    assert max(lengths.values()) <= 300
    assert sum(n <= 150 for n in lengths.values()) >= len(lengths) / 2


@pytest.mark.parametrize(
    "name",
    [
        "hierfl.data.datasets.registry", "hierfl.data.partition.registry", "hierfl.data.tables",
        "hierfl.metrics.registry", "hierfl.metrics.paired", "hierfl.plots.registry",
    ],
)  # fmt: skip
def test_lists_need_no_torch(name: str) -> None:
    code = f"import sys, {name}; print([m for m in ('torch', 'pyro', 'arviz', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_metrics_are_those_of_the_files() -> None:
    assert metrics.names_of("classification") == (
        "accuracy", "nll", "brier", "ece", "worst10_accuracy", "accuracy_cv", "accuracy_pooled", "ece_pooled",
    )  # fmt: skip
    assert metrics.names_of("regression") == ("rmse", "nll", "crps", "coverage90", "rmse_pooled")
    assert metrics.global_metrics() == ("accuracy", "nll", "brier", "ece", "rmse", "crps", "coverage90")
    assert metrics.client_metrics("regression") == ("rmse", "nll", "crps", "coverage90")
    assert [metrics.main_metric(task).name for task in ("classification", "regression")] == ["accuracy", "rmse"]
    assert metrics.metric_of_column("pm_draws_ece") is metrics.METRICS["ece"]


def test_figures_are_where_the_page_shows_them() -> None:
    sections = figures.sections("run")
    assert {heading: sections[heading] for heading in PARTS} == PARTS
    assert list(sections) == [*PARTS, "Who reported when", "Cost"]
    assert figures.sections("comparison") == {"Gains": ("gain", "three"), "Who gains": ("size", "confidence")}
    assert {name: figures.caption(name) for name in CAPTIONS} == CAPTIONS
    assert figures.caption("clients") == ""
    assert figures.caption("effects-x-1") == CAPTIONS["effects"]
    names = ["rounds", "reliability-clients", "histogram", "reliability", "sizes", "confidence-deviation", "confidence"]
    shown = figures.of_section("run", "Clients", names)
    assert shown == ["sizes", "histogram", "confidence", "confidence-deviation"]


def test_networks_are_listed_as_they_are_written() -> None:
    assert [kind.written.partition(":")[0] for kind in KINDS.values()] == list(KINDS)
    assert list(NETWORKS)[: len(KINDS)] == [kind.written for kind in KINDS.values()]
