"""Nothing but the formulas' gate and a method's own file evaluates text."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from support.paths import ROOT

from hierfl.models import METHODS

SHIPPED = [
    path
    for folder in ("hierfl", "inference", "models", "experiments", "docs")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


#: a file of ASCII without any of these names nothing that runs text
WORDS = re.compile(
    r"eval|exec|compile|__import__|query|__globals__|__builtins__|__subclasses__|spec_from|source_to|run_path|pickle"
    r"|load|import_module|formulae|marshal|shelve|runpy|\bcode\b|builtins"
)


def evaluates_text(path: Path) -> list[str]:
    """What in a file could run text as code: line and name."""
    text, uses = path.read_text(), list[str]()
    if text.isascii() and not WORDS.search(text):
        return uses
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and node.id in ("eval", "exec", "compile", "__import__"):
            uses.append(f"{node.lineno}: {node.id}")
        if isinstance(node, ast.Attribute) and node.attr in ("query", "__globals__", "__builtins__", "__subclasses__"):
            uses.append(f"{node.lineno}: .{node.attr}")
        called = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if called in ("exec_module", "spec_from_file_location", "source_to_code", "run_path", "read_pickle"):
            uses.append(f"{node.lineno}: {called}")
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
            uses.append(f"{node.lineno}: torch.load")
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            uses.append(f"{node.value.lineno}: allow_pickle")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "eval":
            uses += [f"{node.lineno}: .eval(...)"] * bool(node.args or node.keywords)  # a module's own has none
        if isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            first = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
            ours = isinstance(first, ast.Constant) and str(first.value).startswith("hierfl.")
            uses += [f"{node.lineno}: import_module of text"] * (not ours)
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            if name.split(".")[0] in ("formulae", "pickle", "marshal", "shelve", "runpy", "code", "builtins"):
                uses.append(f"{node.lineno}: import {name}")
    return uses


def test_nothing_else_evaluates_text() -> None:
    assert len(SHIPPED) > 60
    by_file = {str(path.relative_to(ROOT)): names for path in SHIPPED if (names := evaluates_text(path))}
    # tensors of a file of weights: with weights_only nothing but their numbers is read
    assert [name.partition(": ")[2] for name in by_file.pop("hierfl/nn/networks/weights.py")] == ["torch.load"]
    files = (
        "hierfl/data/formula/gate.py",
        "experiments/methods.py",
        "models/__init__.py",
        "experiments/fingerprints.py",
    )
    names_of = [by_file.pop(name) for name in files]
    assert by_file == {}
    called = [{name.partition(": ")[2] for name in names} for names in names_of]
    assert {name.split(".")[0] for name in called[0]} == {"import formulae"}
    # a method's file is a program that its owner chose to run
    loading = {"spec_from_file_location", "exec_module", "source_to_code"}
    # a method of the list is a file of the package, and not text from elsewhere
    listed = {"import_module of text"}
    assert called[1:] == [loading | listed, listed, listed]
    for entry in METHODS.values():
        assert (ROOT / "models" / f"{entry.module.removeprefix('hierfl.models.').replace('.', '/')}.py").is_file()
