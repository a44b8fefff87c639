"""Rooms whose modules register what they hold: importing the room imports all of them.

So a new data set, split, layer, network or figure is a file in its room, and no list elsewhere names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from pkgutil import iter_modules


def import_room(room: str, path: Iterable[str], first: Sequence[str] = ()) -> None:
    """Imports every module of a package of the ground floor, in the order in which lists show what they register.

    Args:
        room: the package's name below ``hierfl``.
        path: its ``__path__``.
        first: modules that come before the others, which follow by name.
    """
    found = {module.name for module in iter_modules(path)}
    for name in [*first, *sorted(found - set(first))]:
        import_module(f"hierfl.{room}.{name}")
