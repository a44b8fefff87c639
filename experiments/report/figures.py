"""The figures of a folder, as its page shows them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hierfl.plots import registry

#: figures that join several single ones, which a page shows instead
JOINED = ("overview", "features", "posterior")
#: figures that say what another one says, which is shown where there is one: {name: the other's first word}
SHOWN_BY = {"forest": "effects"}
#: a figure's name in words, and its file
Picture = tuple[str, Path]


def pictures_of(folder: Path) -> list[Picture]:
    """The single figures of a folder."""
    paths = sorted((folder / "figures").glob("*.png"))
    names = {p.stem.partition("-")[0] for p in paths}
    twice = {name for name, other in SHOWN_BY.items() if other in names}
    return [(p.stem.replace("-", " "), p) for p in paths if p.stem not in {*JOINED, *twice}]


def caption(name: str, path: Path) -> str:
    """What is below a figure: its caption, or its name where its title says it all."""
    return registry.caption(path.stem) or name


def in_section(pictures: Sequence[Picture], page: registry.Page, heading: str) -> list[Picture]:
    """Those that a page shows under a heading, in order."""
    by_stem = {path.stem: (name, path) for name, path in pictures}
    return [by_stem[stem] for stem in registry.of_section(page, heading, by_stem)]
