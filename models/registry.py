"""Which methods there are, read from their sources: nothing is imported, so that a list of them is there at once.

A method is a class below this folder whose body has ``about = About(...)``, in plain values; see
:class:`~hierfl.inference.method.about.About`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from hierfl.inference.method.about import About


@dataclass(frozen=True, kw_only=True)
class Entry(About):
    """A method, as its class describes it.

    Attributes:
        module, cls: where the class is.
    """

    module: str
    cls: str


#: what a class must state
STATED = tuple(f.name for f in fields(About) if f.name != "paper")


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
        entries = [entry for path in sorted(self.folder.rglob("*.py")) for entry in self.read(path)]
        names = [entry.name for entry in entries]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise TypeError(f"several classes of {self.package} have the name {twice[0]!r}")
        return {entry.name: entry for entry in sorted(entries, key=lambda entry: (entry.order, entry.name))}

    def read(self, path: Path) -> Iterator[Entry]:
        """The methods that a file defines.

        Raises:
            TypeError: for a class whose About leaves something out or is not in plain values, and for a class that
                states a name in the old form, an attribute of its own.
        """
        source = path.read_text(encoding="utf-8")
        if "\n    about = " not in source and "\n    name = " not in source:
            return
        module = ".".join([self.package, *path.relative_to(self.folder).with_suffix("").parts])
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and (entry_fields := stated(node, f"{module}.{node.name}")):
                if missing := [name for name in STATED if name not in entry_fields]:
                    raise TypeError(f"the About of {module}.{node.name} must state its {', '.join(missing)}, too")
                yield Entry(module=module, cls=node.name, **entry_fields)

    def class_named(self, name: str) -> Entry | None:
        """The method whose class has this name."""
        return next((entry for entry in self.entries.values() if entry.cls == name), None)

    def __getitem__(self, name: str) -> Entry:
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def stated(node: ast.ClassDef, cls: str) -> dict[str, Any]:
    """What a class states in its About, by name; empty for a class without one.

    Args:
        node: of the class.
        cls: what it is called, for a message.

    Raises:
        TypeError: for values that are not plain, and for a name in the old form.
    """
    values = {
        line.targets[0].id: line.value
        for line in node.body
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name)
    }
    declared, name = values.get("about"), values.get("name")
    if isinstance(declared, ast.Call) and ast.unparse(declared.func).rpartition(".")[2] == "About":
        try:
            if declared.args:
                raise ValueError
            return {word.arg: ast.literal_eval(word.value) for word in declared.keywords if word.arg}
        except ValueError as error:
            raise TypeError(f"the About of {cls} must have plain values by name, such as name='mine'") from error
    if isinstance(name, ast.Constant):
        raise TypeError(f"{cls} states its name as an attribute: write about = About(name={name.value!r}, ...)")
    return {}


#: the methods of this package
METHODS = Registry(Path(__file__).parent, __package__ or "")
