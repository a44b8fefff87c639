"""The figures of reports: their files' names, where a page shows them, their captions, and what they are drawn from.

A drawing function says so itself, with the decorator :func:`figure`; no list elsewhere names it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

Page = Literal["run", "comparison"]
Source = Literal["run", "posterior"]
#: arguments of a drawing function, but for the axis, and the name of the figure's file
Drawing = tuple[str, dict[str, Any]]
Draw = TypeVar("Draw", bound=Callable[..., Any])

#: headings of a page, in its order
SECTIONS = (
    "Over rounds", "Clients", "Calibration", "Population and clients", "Chains", "Posterior-predictive checks",
    "Features", "Who reported when", "Cost", "Gains", "Who gains",
)  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """A figure of a report, or a group of them.

    Attributes:
        name: of its file, without ``.png``; of a group what the names begin with, before a hyphen.
        draw: the drawing function; takes ``ax`` by name.
        section: the heading under which the page shows it, one of :data:`SECTIONS`.
        position: its position there; figures whose names have the same first word are together, by name.
        caption: the text below; empty where its title says it all.
        page: of a run, or of a comparison.
        source: what it is drawn from: a run's tables (:class:`hierfl.plots.run.RunTables`), or its InferenceData
            (:class:`hierfl.plots.posterior.Posterior`); None where a command draws it by itself.
        needs: of the source; gives a :data:`Drawing` for each figure that it allows, none where it allows none.
        order: its position among the figures of its source, as they are drawn and shown in the overview.
    """

    name: str
    draw: Callable[..., Any]
    section: str
    position: int
    caption: str
    page: Page
    source: Source | None
    needs: Callable[[Any], Iterable[Drawing]] | None
    order: int


FIGURES: list[Figure] = []


def figure(
    name: str, section: str, caption: str = "", *, position: int = 100, page: Page = "run",
    source: Source | None = None, needs: Callable[[Any], Iterable[Drawing]] | None = None, order: int = 100,
) -> Callable[[Draw], Draw]:  # fmt: skip
    """Registers a drawing function as a figure of a report; see :class:`Figure`."""
    if section not in SECTIONS or (source is None) != (needs is None):
        raise ValueError(f"figure {name}: {section!r} is no section, or what it needs is not said")

    def registered(draw: Draw) -> Draw:
        FIGURES.append(Figure(name, draw, section, position, caption, page, source, needs, order))
        return draw

    return registered


def panels(source: Source, data: Any) -> dict[str, Callable[[Any], Any]]:
    """The figures that a source allows, by name, each a function of an axis."""
    drawn: dict[str, Callable[[Any], Any]] = {}
    for figure in sorted((f for f in FIGURES if f.source == source), key=lambda f: f.order):
        assert figure.needs is not None
        for name, arguments in figure.needs(data):
            drawn[name] = partial(_on, partial(figure.draw, **arguments))
    return drawn


def _on(draw: Callable[..., Any], ax: Any) -> Any:
    return draw(ax=ax)


def sections(page: Page) -> dict[str, tuple[str, ...]]:
    """The parts of a page in order: heading, and the first words of its figures' names."""
    by_heading: dict[str, tuple[str, ...]] = {}
    for heading in SECTIONS:
        mine = sorted((f for f in FIGURES if f.page == page and f.section == heading), key=lambda f: f.position)
        if mine:
            by_heading[heading] = tuple(dict.fromkeys(f.name.partition("-")[0] for f in mine))
    return by_heading


def caption(name: str) -> str:
    """The caption of the figure of this name; its group's caption where it has none of its own, or nothing."""
    captions = {f.name: f.caption for f in reversed(FIGURES) if f.caption}
    return captions.get(name) or captions.get(name.partition("-")[0], "")


def of_section(page: Page, heading: str, names: Iterable[str]) -> list[str]:
    """Those of these figures' names that a page shows under a heading, in order."""
    ordered = sorted(names, key=lambda n: f"{n}.png")  # as files are listed
    return [n for start in sections(page).get(heading, ()) for n in ordered if n.partition("-")[0] == start]


def slug(name: str) -> str:
    """A name from elsewhere as a part of a file's."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")


def once(allowed: bool, name: str, **arguments: Any) -> Iterator[Drawing]:
    """The drawing of one figure, where it is allowed."""
    if allowed:
        yield name, arguments
