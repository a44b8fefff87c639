"""Which methods there are, read from their sources: nothing is imported, so that a list of them is there at once.

A method is a class below this folder with a ``name``, and says on itself what it is, in plain values:

    name            on the command line
    about           what it is, in words
    family          which limit of the one model it is, or what it adds to one
    stays           what stays with a client from round to round
    sent            what a client sends
    message_size    of that, relative to FedAvg's, for mlp:100 on 28x28 images of ten classes; None where there is none
    order           its place in lists
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Entry:
    """A method, as its class describes it.

    Attributes:
        module, cls: where the class is.
        name, about, family, stays, sent, message_size, order: see above.
    """

    module: str
    cls: str
    name: str
    about: str
    family: str
    stays: str
    sent: str
    message_size: float | None
    order: int


#: what a class must say
STATED = tuple(f.name for f in fields(Entry) if f.name not in ("module", "cls"))


class Registry(Mapping[str, Entry]):
    """The methods of a package by name, in order; its files are read when the first is asked for.

    Args:
        folder: of the package.
        package: its name.
    """

    def __init__(self, folder: Path, package: str) -> None:
        self.folder, self.package = folder, package

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """All of them."""
        found = [entry for path in sorted(self.folder.rglob("*.py")) for entry in self.read(path)]
        names = [entry.name for entry in found]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise TypeError(f"several classes of {self.package} have the name {twice[0]!r}")
        return {entry.name: entry for entry in sorted(found, key=lambda entry: (entry.order, entry.name))}

    def read(self, path: Path) -> Iterator[Entry]:
        """The methods that a file defines.

        Raises:
            TypeError: for a class with a name that leaves something unsaid: what it inherits belongs to another method.
        """
        source = path.read_text(encoding="utf-8")
        if "\n    name = " not in source:
            return
        module = ".".join([self.package, *path.relative_to(self.folder).with_suffix("").parts])
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef):
                said = dict(stated(node))
                if "name" not in said:
                    continue
                if missing := [name for name in STATED if name not in said]:
                    raise TypeError(f"{module}.{node.name} has a name, and must say its {', '.join(missing)}, too")
                yield Entry(module, node.name, **said)

    def class_named(self, name: str) -> Entry | None:
        """The method whose class has this name."""
        return next((entry for entry in self.entries.values() if entry.cls == name), None)

    def __getitem__(self, name: str) -> Entry:
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def stated(node: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    """What a class says of itself in plain values, by name."""
    for line in node.body:
        if isinstance(line, ast.Assign | ast.AnnAssign) and isinstance(line.value, ast.Constant):
            for target in line.targets if isinstance(line, ast.Assign) else [line.target]:
                if isinstance(target, ast.Name) and target.id in STATED:
                    yield target.id, line.value.value


#: the methods of this package
METHODS = Registry(Path(__file__).parent, __package__ or "")
