"""The second floor: one file per method or family. The page you edit.

Classes are lent by name, ``from hierfl.models import PFedVEM``, and their files imported only then: the list of methods
(:data:`METHODS`) needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .registry import METHODS as METHODS


def __getattr__(name: str) -> Any:
    if name == "__all__":  # of ``import *``; a list of the module's own would read every method's file on import
        return ["METHODS", *(entry.cls for entry in METHODS.values())]
    entry = METHODS.class_named(name)
    if entry is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(entry.module), name)


def class_of(name: str) -> Any:
    """The class of a method by its registered name."""
    return __getattr__(METHODS[name].cls)


def __dir__() -> list[str]:
    return ["METHODS", *(entry.cls for entry in METHODS.values())]
