"""Figures are listed once: their sections, their captions, and which a page shows where."""

from __future__ import annotations

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
