"""A method's class with more in front of it."""

from __future__ import annotations

from typing import Any

from .base import Method


def derived(cls: type[Method], more: type[Method]) -> type[Method]:
    """The class with the methods of ``more`` in front of its own; it is called the same.

    Its objects can be copied and sent to other processes: they are made again from both classes.
    """
    own = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__reduce_ex__": _reduced}
    return type(cls.__name__, (more, cls), own)


def _reduced(self: Method, protocol: object) -> tuple[Any, ...]:
    more, cls = type(self).__bases__
    return _again, (cls, more), vars(self)


def _again(cls: type[Method], more: type[Method]) -> Method:
    made: Method = object.__new__(derived(cls, more))
    return made
