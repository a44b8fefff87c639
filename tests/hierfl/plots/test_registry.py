"""Figures are listed once: their sections, their captions, and which a page shows where."""

from __future__ import annotations

from hierfl.experiments.report.figures import CAPTIONS, PARTS
from hierfl.plots import registry as figures


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
