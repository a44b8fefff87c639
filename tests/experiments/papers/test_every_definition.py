"""Every table and figure of the papers runs, on tiny pictures under the data sets' names."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from support.drawing import one_figure
from support.tiny_sets import write_sets

from hierfl.experiments.papers.definition import Table
from hierfl.experiments.papers.make_table import make_table
from hierfl.experiments.papers.read_definition import names, shipped

#: arguments of experiments that are no grid of runs, as small as they can be
SMALL = {
    "synthetic": {"exact": "1", "exact_rounds": "2"}, "sizes": {"splits": "2"}, "alone": {"epochs": "1"},
    "unseen": {"steps": "2", "examples": "5,10"}, "cost": {"widths": "4,8", "turns": "1"}, "search": {"budget": "1"},
}  # fmt: skip
#: methods that are quick, of which each data set and condition has a run
QUICK = ("fedavg", "fedper", "fedprox", "fedavg-ft", "pfedvem", "pfedvmp", "local")


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("sets")
    write_sets(folder)
    return str(folder)


def run_options(table: Table, root: str) -> dict[str, Any]:
    """A round of a small network, or two where it is weights of clients that are drawn: before the first all are 1."""
    if table.runner == "sizes":
        return {"data_root": root}
    if table.runner == "synthetic":
        return {"data_root": root, "rounds": 1}
    domains = {"split": "domains:20"} if table.by or table.runner in ("alone", "unseen") else {}
    network = {"cost": "cnn:2:8", "alone": "bncnn:2,2:4", "unseen": "bncnn:2,2:4"}.get(table.runner, "mlp:4")
    once = {} if table.runner == "alone" else {"rounds": 2 if table.figure.get("kind") == "densities" else 1}
    small = {"data_root": root, **once, **domains, "network": "bncnn:2,2:4" if table.by else network}
    return small if table.runner else {**small, "evaluate_every": 1, "draws": 2, "participation": 1.0}


@pytest.mark.slow
@pytest.mark.figures("blank")
@pytest.mark.parametrize("name", names())
def test_a_definition_runs(name: str, sets: str, tmp_path: Path) -> None:
    table = shipped(name)
    options: dict[str, Any] = {"seeds": 1, "extra": run_options(table, sets), "progress": False}
    if table.runner or table.figure.get("kind") == "bubbles":
        settings = SMALL.get(table.runner)
        with one_figure():
            rows = make_table(name, tmp_path, settings=settings, **options)
        assert table.figure or all(row.get("ours") is not None for row in rows)
        return
    if table.conditions[0].clients:
        options["clients"] = [50 if "sun397" in table.data else 10]  # which deals fifty subclasses
    copied = table.figure.get("kind") == "of-runs"
    first, few = table.conditions[0], table.headline[:2] or table.methods[:2]
    quick = next((method for method in QUICK if method in table.methods), table.methods[0])
    with nullcontext() if copied else one_figure():
        make_table(name, tmp_path, methods=few, data=first.data[:1], conditions=[first.name], **options)
        rows = make_table(name, tmp_path, methods=[quick], **options)
    unreachable = [row for row in rows if row.get("ours") is None]
    assert all(row.get("why") not in ("", "not run") for row in unreachable)
    assert len(unreachable) < len(rows)
    assert not table.figure or list(tmp_path.glob("*.png"))
