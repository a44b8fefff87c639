"""What a method knows of broadcasts beside a client's responses.

It is beside :class:`.capabilities.ChecksBroadcasts`, which looks at a client's inputs alone.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from ..state import State


@runtime_checkable
class ChecksResponses(Protocol):
    """A method that knows which broadcasts an honest fit never makes of such responses; see :func:`response_error`."""

    def response_error(self, shared: State, y: Tensor) -> str:
        """What is wrong with a broadcast, without its values; empty where nothing is.

        Args:
            shared: as broadcast, finite and of the right form.
            y: of the client's training examples, (n, ...).
        """
        ...


def response_error(method: object, shared: State, y: Tensor) -> str:
    """Why no honest fit makes a broadcast; empty where it may, and for a method that does not know."""
    return method.response_error(shared, y) if isinstance(method, ChecksResponses) else ""
