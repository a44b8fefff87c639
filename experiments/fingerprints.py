"""Fingerprints of methods: which version of a method's files a run or a study was begun with."""

from __future__ import annotations

import ast
import tomllib
from collections import deque
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.resources import files
from importlib.util import resolve_name
from pathlib import Path
from typing import TYPE_CHECKING

from . import trust

if TYPE_CHECKING:
    from hierfl.inference import Method

#: the package of the methods that ship
MODELS = "hierfl.models"


def fingerprint(cls: type[Method], source: bytes) -> str:
    """What tells two versions of a method apart: "OWN", or "OWN-FOUNDATION" where files of ours belong to it.

    OWN is of the file that defines the class, so that it can be checked before that file is run.

    Args:
        cls: the class.
        source: the bytes of its file.
    """
    files = foundation(cls)
    if not files:
        return short_digest(source)
    return (
        f"{short_digest(source)}-{short_digest(b''.join(trust.digest(path.read_bytes()).encode() for path in files))}"
    )


def own_part(digest: str) -> str:
    """The part of a fingerprint that is of the method's own file."""
    return digest.partition("-")[0]


def foundation(cls: type[Method]) -> list[Path]:
    """The files of ``hierfl.models`` that a method is made of, beside its own.

    Those that its class inherits from, in the order in which Python looks them up, and what these import of
    ``hierfl.models``, in the order of the imports.
    """
    paths: dict[str, Path] = {}

    def add(name: str) -> None:
        if not name.startswith(f"{MODELS}.") or name in paths:
            return
        module = import_module(name)
        if hasattr(module, "__path__"):  # a package says nothing of a method
            return
        paths[name] = path = Path(str(module.__file__))
        for imported in _imports(path.read_bytes(), name.rpartition(".")[0]):
            add(imported)

    for base in cls.__mro__:
        add(base.__module__)
    paths.pop(cls.__module__, None)
    return list(paths.values())


@cache  # a table asks for the same few files thousands of times
def _imports(source: bytes, package: str) -> tuple[str, ...]:
    """The modules of ``hierfl.models`` that a file of a package imports names from, each once, in their order."""
    nodes = [node for node in _statements(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    names = [resolve_name("." * node.level + (node.module or ""), package) for node in nodes]
    return tuple(dict.fromkeys(name for name in names if name.startswith(f"{MODELS}.")))


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """The order of :func:`ast.walk`, without expressions: no import is in one."""
    left = deque([tree])
    while left:
        node = left.popleft()
        yield node
        for name in ("body", "handlers", "cases", "orelse", "finalbody"):
            left.extend(getattr(node, name, ()))


def short_digest(source: bytes) -> str:
    return trust.digest(source)[:16]


@cache
def _earlier() -> dict[str, list[str]]:
    """Fingerprints of earlier versions of ours that give the same numbers, to the bit, by those of today's.

    Golden runs have said so (tests/support/earlier_methods.py). An entry ends with the next change of a file.
    """
    earlier: dict[str, list[str]] = tomllib.loads((files(__package__) / "earlier_methods.toml").read_text())
    return earlier


def same_version(digest: str, recorded: str) -> bool:
    """Whether a method is the version of which a fingerprint was recorded, or one that gives the same numbers.

    Args:
        digest: of the method, see :func:`fingerprint`.
        recorded: of a run or a study.
    """
    own, _, base = digest.partition("-")
    return recorded in (digest, *_earlier().get(digest, ())) or (
        own == own_part(recorded) and recorded.partition("-")[2] in _earlier().get(base, ())
    )
