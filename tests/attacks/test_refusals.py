"""Refusals as answers: whether a site refuses depends on its rows, so that each refusal says a bit of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from support.attacks.coordinator import initial
from support.attacks.gated import GatedCoordinator, Hospital
from support.attacks.hospitals import hospital, table_study
from support.attacks.thresholds import told

from hierfl.experiments.federate.guard import points
from hierfl.experiments.federate.guard.audit import AUDIT
from hierfl.inference.engines.remote.preparation import numbered
from hierfl.inference.state import State

HONEST = "y ~ age + sex + (1 | site)"


def oldest(north: Hospital, folder: Path) -> GatedCoordinator:
    """A study whose threshold follows the mean, of patients of whom two are older than all others."""
    df = hospital(300, lone=False)
    df.loc[df.age > 80, "age"] = 80
    df.loc[:1, "age"] = 88, 89
    path = table_study(folder, "y ~ where(center(age) > 0, 1, 0) + sex + (1 | site)", df, test=0.2)
    return north.approved(north.study(path), folder / "north.csv")


@pytest.mark.parametrize("kind", ["prepare", "hello"])
def test_totals_that_were_refused_are_not_told_anew(kind: str, north: Hospital, tmp_path: Path) -> None:
    """Else a threshold that comes down until it is not refused any more finds the fifth oldest patient's age."""
    site = oldest(north, tmp_path)
    if kind == "prepare":
        assert site.sums([]) is not None
    for cut in (87.5, 85.5, 83.5, 75.0, 60.0):
        first = told(site, cut, 15000.0)
        if kind == "prepare":
            site.sums([first])
        else:
            site.ask("hello", numbered([first, first]))
    assert site.classes() == [site.classes()[0], *["answered"] * 4]
    again = GatedCoordinator(north, north.coordinator(north.study(tmp_path / "study.toml")).gate, site.study)
    again.sums([told(site, 87.5, 15000.0)])
    assert again.classes() == ["policy"]  # it is what was told, and still what the rules refuse
    again = north.approved(north.study(tmp_path / "study.toml"), tmp_path / "north.csv")
    assert again.sums([told(site, 65.0, 15000.0)]) is not None  # others count once people have approved it again


def steep(site: GatedCoordinator, slope: float) -> State:
    """A broadcast whose coefficient of age is out of bounds where the ages reach far enough."""
    values = initial(site.study, site.totals)
    name = next(name for name, value in values.items() if name.startswith("effects.") and value.ndim and len(value) > 2)
    return {**values, name: torch.full_like(values[name], slope)}


def test_a_refusal_of_values_has_its_price(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds look at the rows: free refusals would say how far they reach in any direction."""
    monkeypatch.setattr(points, "need_of", lambda *given: 1)
    north = Hospital(tmp_path / "north", ("north", "south", "east"), budget={"binomial": 3})
    df = hospital(300, lone=False)
    site = north.approved(north.study(table_study(tmp_path, HONEST, df, test=0.2)), tmp_path / "north.csv")
    assert site.prepared()
    assert site.round(1, initial(site.study, site.totals)) is not None
    for number, slope in enumerate(np.geomspace(1e6, 1e3, 8)):
        assert site.round(2, steep(site, float(slope)), counted=1, restart=number) is None
    assert site.classes() == ["bounds"] * 2 + ["budget"] * 6
    site.refusals.clear()
    assert site.round(2, steep(site, 2e6), counted=1) is None
    assert site.classes() == ["answered"]


def test_an_end_that_is_refused_has_its_price(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "need_of", lambda *given: 1)
    north = Hospital(tmp_path / "north", ("north", "south", "east"), budget={"binomial": 3})
    df = hospital(300, lone=False)
    site = north.approved(north.study(table_study(tmp_path, HONEST, df, test=0.2)), tmp_path / "north.csv")
    assert site.prepared()
    assert site.round(1, initial(site.study, site.totals)) is not None
    for number, slope in enumerate(np.geomspace(1e6, 1e3, 5)):
        sent = {f"shared/{name}": value for name, value in steep(site, float(slope)).items()}
        assert site.ask("finish", sent, 1, counted=1, final=False, restart=number) is None
    assert site.classes() == ["bounds"] * 3 + ["budget"] * 2
    assert not site.gate.ended


def test_the_head_of_the_audit_file_says_no_reason(north: Hospital, tmp_path: Path) -> None:
    """It is in every reply. Who guesses the reason's words could else compare their digest with it."""
    site = oldest(north, tmp_path)
    assert site.sums([]) is not None
    assert site.sums([told(site, 87.5, 15000.0)]) is None
    lines = [json.loads(line) for line in (north.home.folder / AUDIT).read_text().splitlines()]
    assert "selects" in lines[-1]["reason"]
    assert len({line["salt"] for line in lines}) == len(lines)
    assert all(len(line["salt"]) == 32 for line in lines)
