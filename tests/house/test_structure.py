"""The house: imports run downwards and in no circle, and files are read in one sitting."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from support.paths import ROOT

#: folder: the package that it is installed as, and its floor
FLOORS = {
    "hierfl": ("hierfl", 0),
    "inference": ("hierfl.inference", 1),
    "models": ("hierfl.models", 2),
    "experiments": ("hierfl.experiments", 3),
}
#: the folders' own names: nothing is installed under them
OUTSIDE = {"inference", "models", "experiments", "tests", "support"}
#: modules that may name what stands above: the command, and names that are lent when they are asked for
DOORS = {"hierfl.__main__", "hierfl"}

#: no function is called by such a word alone, which does not name what it returns: Design.from_columns, not Design.of
EMPTY_WORDS = {
    "of", "held", "place", "everybody", "nobody", "whoever", "about", "found", "here", "one", "said", "seen", "settled",
    "short", "there", "told",
}  # fmt: skip
#: and no argument by one of these
EMPTY_ARGUMENTS = EMPTY_WORDS - {"of"}
#: and no variable: about is a field that describes a method or response, told an entry of masked messages
EMPTY_LOCALS = EMPTY_ARGUMENTS - {"about", "short", "seen", "settled", "told"} | {"heard"}
#: constants that do not say what they bound
EMPTY_CONSTANTS = {"HELD", "FLAT", "TRIES", "NEAR", "WIDER", "NOTHING", "ALONG", "FAR", "NOWHERE", "MOST"}


@dataclass(frozen=True)
class Module:
    """A file of the house.

    Attributes:
        name: as it is imported.
        path: where it is.
        folder: its floor's.
        tree: what stands in it.
    """

    name: str
    path: Path
    folder: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """What its relative imports begin from."""
        return self.name if self.path.stem == "__init__" else self.name.rpartition(".")[0]


@cache
def house() -> dict[str, Module]:
    """All files by module; committed results are no part of it."""
    modules = {}
    for folder, (package, _) in FLOORS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            inside = path.relative_to(ROOT / folder)
            if folder == "experiments" and inside.parts[0] == "results":
                continue
            name = ".".join([package, *inside.with_suffix("").parts]).removesuffix(".__init__")
            modules[name] = Module(name, path, folder, ast.parse(path.read_text()))
    return modules


@cache
def nodes(name: str) -> tuple[ast.AST, ...]:
    """All nodes of a module's tree: most of these tests look at each of them."""
    return tuple(ast.walk(house()[name].tree))


@cache
def floor(name: str) -> int:
    """On which floor a module is."""
    return max(level for package, level in FLOORS.values() if f"{name}.".startswith(f"{package}."))


@cache
def lent() -> dict[str, str]:
    """What ``hierfl`` lends from its rooms and from above, and the module that has it: who asks the door asks that."""
    path = ROOT / "hierfl" / "__init__.py"
    (rooms,) = [
        node.value
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_ROOMS"
    ]
    return {f"hierfl.{name}": f"hierfl.{room}" for name, room in ast.literal_eval(rooms).items()}


def named(module: Module, node: ast.AST) -> Iterator[str]:
    """Modules, or names in them, that a statement imports; ``import_module`` with a text counts."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = module.package.split(".")
        base = base[: len(base) - node.level + 1] if node.level else []
        source = ".".join([*base, *([node.module] if node.module else [])])
        yield from (f"{source}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and "import_module" in (vars(node.func).get("attr"), vars(node.func).get("id")):
        first = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield first.value.rstrip(".")


@cache
def imported(module: Module, within: ast.AST | None = None) -> frozenset[str]:
    """Modules of the house that a file imports: at its top, in functions, or for types alone."""
    known, imports = house(), set()
    for node in ast.walk(within) if within else nodes(module.name):
        for name in named(module, node):
            name = lent().get(name, name)
            while name and name not in known:  # a name of a module
                name = name.rpartition(".")[0]
            imports.add(name)
    return frozenset(imports - {module.name, ""})


@pytest.fixture(scope="module", autouse=True)
def forgets_trees() -> Iterator[None]:
    """Millions of nodes, among which every later search for garbage would look."""
    yield
    for known in (nodes, imported, house):
        known.cache_clear()


@pytest.mark.cpu(5, "the first of these tests parses every module of the house for all of them")
def test_imports_run_downwards_only() -> None:
    """experiments -> models -> inference -> hierfl."""
    assert len(house()) > 300
    assert {floor(name) for name in house()} == {0, 1, 2, 3}
    upwards = [
        f"{module.name} imports {other}"
        for module in house().values()
        for other in imported(module)
        if floor(other) > floor(module.name) and module.name not in DOORS
    ]
    assert upwards == []


def test_what_is_imported_through_a_door_waits() -> None:
    """``import hierfl`` brings nothing from above: its names are looked up when they are asked for."""
    lending = house()["hierfl"]
    at_once = [node for node in lending.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not [other for node in at_once for other in imported(lending, node) if floor(other)]
    assert imported(house()["hierfl.__main__"]) == {"hierfl.experiments.cli"}


def test_relative_imports_stay_on_their_floor_and_others_name_it() -> None:
    wrong = []
    for module in house().values():
        depth = len(module.path.relative_to(ROOT / module.folder).parts)
        for node in nodes(module.name):
            if isinstance(node, ast.ImportFrom) and node.level > depth:
                wrong.append(f"{module.name}:{node.lineno} leaves its floor by dots")
            if isinstance(node, ast.Import | ast.ImportFrom) and not getattr(node, "level", 0):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                wrong += [f"{module.name}:{node.lineno} imports {n}" for n in names if n.split(".")[0] in OUTSIDE]
                own = FLOORS[module.folder][0]  # its names are not asked of itself, nor of the door
                wrong += [
                    f"{module.name}:{node.lineno} names its own floor: {n}"
                    for n in names
                    if f"{n}.".startswith(f"{own}.") and floor(n) == floor(own) and module.name not in DOORS
                ]
    assert wrong == []


def test_there_are_no_circles() -> None:
    graph = {
        module.name: {
            other for other in imported(module) if module.name not in DOORS or floor(other) == floor(module.name)
        }
        for module in house().values()
    }
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"a circle: {' -> '.join(error.args[1])}")
    assert len(order) == len(house())


@pytest.mark.parametrize("folder", FLOORS)
def test_files_are_short(folder: str) -> None:
    lengths = {
        module.name: len(module.path.read_text().splitlines()) for module in house().values() if module.folder == folder
    }
    assert {name: n for name, n in lengths.items() if n > 300} == {}
    assert sum(n <= 150 for n in lengths.values()) >= len(lengths) / 2


def test_tests_are_short_and_lie_where_their_subject_does() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert {name: n for name, n in lengths.items() if n > 300} == {}
    assert not list((ROOT / "tests").rglob("__init__.py"))
    rooms = {path.parent.relative_to(ROOT / "tests") for path in files if path.stem.startswith("test_")}
    ours = {"house", "invariants", "attacks"}  # what is of no one room
    strange = [room for room in rooms if not room.parts or (room.parts[0] not in ours and not (ROOT / room).is_dir())]
    assert strange == []
    importers = [
        f"{path.name}: {module}"
        for path in files
        for module in re.findall(r"^\s*from\s+((?:test_|conftest)[\w.]*)", path.read_text(), re.MULTILINE)
    ]
    assert importers == []  # what tests share is in tests/support


def words_of_functions() -> Iterator[tuple[str, str]]:
    """Names of functions and methods without their underscores, and where each is defined."""
    for module in house().values():
        for node in nodes(module.name):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name.strip("_"), f"{module.name}:{node.lineno}"


def test_functions_are_named_by_what_they_return() -> None:
    names = list(words_of_functions())
    assert len(names) > 5000
    assert [f"{where} {name}" for name, where in names if name in EMPTY_WORDS] == []
    arguments = [
        f"{module.name}:{node.lineno} {node.arg}"
        for module in house().values()
        for node in nodes(module.name)
        if isinstance(node, ast.arg) and node.arg.strip("_") in EMPTY_ARGUMENTS
    ]
    assert arguments == []
    stored = [
        f"{module.name}:{node.lineno} {node.id}"
        for module in house().values()
        for node in nodes(module.name)
        if isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Store)
        and node.id.strip("_") in EMPTY_LOCALS | EMPTY_CONSTANTS
    ]
    assert stored == []


def test_tests_name_things_too() -> None:
    """Functions, variables and arguments of tests."""
    empty, bound = [], re.compile(rf"\b_*(?:{'|'.join(sorted(EMPTY_LOCALS))})_*(?: =|:|\(|\)|,| in )")
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if bound.search(text) else ():
            name = ""
            if isinstance(node, ast.FunctionDef):
                name = node.name
            elif isinstance(node, ast.arg):
                name = node.arg
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                name = node.id if isinstance(node, ast.Name) else node.attr
            if name.strip("_") in EMPTY_LOCALS:
                empty.append(f"{path.relative_to(ROOT)}:{node.lineno} {name}")
    assert empty == []


@pytest.mark.parametrize("library", ["unittest.mock", "pickle", "argparse"])
def test_libraries_that_nothing_shipped_needs(library: str) -> None:
    users = [
        module.name
        for module in house().values()
        for node in nodes(module.name)
        for name in named(module, node)
        if f"{name}.".startswith(f"{library}.")
    ]
    assert users == []


def test_every_folder_says_what_it_holds() -> None:
    packages = {module.path.parent for module in house().values()}
    silent = [
        folder.relative_to(ROOT)
        for folder in packages
        if not (folder / "__init__.py").is_file()
        or not ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    ]
    assert silent == []
