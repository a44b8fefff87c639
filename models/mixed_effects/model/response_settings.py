"""Settings that responses have of their own, among those of the method."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hierfl.inference.method.settings import setting
from hierfl.responses.registry import RESPONSES

S = TypeVar("S")


def with_responses(after: str) -> Callable[[type[S]], type[S]]:
    """Adds the fields that responses declare to a class that becomes a dataclass.

    Args:
        after: the field behind which they come.
    """
    own = {
        name: setting("", f"{entry.name}: {meaning}")
        for entry in RESPONSES.values() for name, (meaning, _) in entry.settings.items()
    }  # fmt: skip

    def added(cls: type[S]) -> type[S]:
        kinds: dict[str, object] = {}
        for name, kind in cls.__annotations__.items():
            kinds |= {name: kind} | (dict.fromkeys(own, "str") if name == after else {})
        cls.__annotations__ = kinds
        for name, value in own.items():
            setattr(cls, name, value)
        return cls

    return added
