"""A method's class with more in front of it."""

from __future__ import annotations

from .base import Method


def derived(cls: type[Method], more: type[Method]) -> type[Method]:
    """The class with the methods of ``more`` in front of its own; it is called the same."""
    return type(cls.__name__, (more, cls), {"__module__": cls.__module__, "__qualname__": cls.__qualname__})
