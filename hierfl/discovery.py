"""Rooms whose modules register what they hold: importing the room imports all of them.

So a new data set, split, layer, network or figure is a file in its room, and no list elsewhere names it.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any


def import_room(room: str, path: Iterable[str], first: Sequence[str] = ()) -> None:
    """Imports every module of a package of the ground floor, in the order in which lists show what they register.

    Args:
        room: the package's name below ``hierfl``.
        path: its ``__path__``.
        first: modules that come before the others, which follow by name.
    """
    names = {module.name for module in iter_modules(path)}
    for name in [*first, *sorted(names - set(first))]:
        import_module(f"hierfl.{room}.{name}")


def stated(path: Path, names: Collection[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What the classes of a file say of themselves in plain values, which is read without importing it.

    Args:
        path: of the file.
        names: of the class attributes that are read.

    Returns:
        The name of each class, and its own attributes by name.
    """
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield node.name, dict(_plain(node, names))


def _plain(node: ast.ClassDef, names: Collection[str]) -> Iterator[tuple[str, Any]]:
    for line in node.body:
        if isinstance(line, ast.Assign | ast.AnnAssign) and line.value is not None:
            for target in line.targets if isinstance(line, ast.Assign) else [line.target]:
                if isinstance(target, ast.Name) and target.id in names and _is_plain(line.value):
                    yield target.id, ast.literal_eval(line.value)


def _is_plain(value: ast.expr) -> bool:
    """Whether it is made of constants alone."""
    return all(isinstance(part, ast.Constant | ast.Tuple | ast.Dict | ast.expr_context) for part in ast.walk(value))
