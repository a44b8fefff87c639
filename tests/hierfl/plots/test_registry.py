"""Figures are listed once: their sections, their captions, and which a page shows where."""

from __future__ import annotations

import inspect
from importlib import import_module

from support.paths import ROOT

from hierfl.plots import registry


def test_every_figure_has_a_section_of_its_page() -> None:
    assert registry.sections("comparison") == {"Gains": ("gain", "three"), "Who gains": ("size", "confidence")}
    run = registry.sections("run")
    assert list(run) == [
        "Over rounds", "Clients", "Calibration", "Population and clients", "Chains", "Posterior-predictive checks",
        "Features", "Who reported when", "Cost",
    ]  # fmt: skip
    assert run["Clients"] == ("sizes", "clients", "histogram", "confidence", "entropy")
    assert {figure.section for figure in registry.FIGURES} <= set(registry.SECTIONS)


def test_a_figure_has_its_own_caption_its_groups_or_none() -> None:
    own = registry.caption("confidence-deviation")
    assert own.startswith("How far a client's model lies")
    assert own != registry.caption("confidence")
    assert registry.caption("effects-x-1") == registry.caption("effects") != ""
    assert registry.caption("clients") == registry.caption("sizes") != ""
    assert registry.caption("unknown") == ""


def test_figures_of_a_section_are_in_the_order_of_their_files() -> None:
    names = ["rounds", "reliability-clients", "histogram", "reliability", "sizes", "confidence-deviation", "confidence"]
    shown = registry.of_section("run", "Clients", names)
    assert shown == ["sizes", "histogram", "confidence-deviation", "confidence"]  # "-" comes before "."


def test_every_figure_is_in_the_gallery() -> None:
    """Functions that draw into an axis or write a file have a section, a call and a picture in docs/figures.md."""
    page, drawing = (
        (ROOT / "docs" / "figures.md").read_text(encoding="utf-8"),
        {figure.draw for figure in registry.FIGURES},
    )
    for path in sorted((ROOT / "hierfl" / "plots").glob("[!_]*.py")):
        module = import_module(f"hierfl.plots.{path.stem}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            parameters = inspect.signature(function).parameters
            draws = "ax" in parameters and parameters["ax"].default is None
            writes = "path" in parameters and inspect.signature(function).return_annotation == "Path" and name != "save"
            drawing |= (
                {function} if function.__module__ == module.__name__ and name[0] != "_" and (draws or writes) else set()
            )
    assert len(drawing) > 30
    for function in drawing:
        name = function.__name__
        assert f"### `{name}`" in page, name
        assert f"![{name}](figures/{name.replace('_', '-')}.png)" in page, name
        assert (ROOT / "docs" / "figures" / f"{name.replace('_', '-')}.png").is_file(), name
