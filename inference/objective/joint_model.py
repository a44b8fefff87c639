"""What the objective needs of a method: a model and a guide."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from hierfl.data.batch import Batch
from hierfl.nn.architecture import Architecture


class JointModel(Protocol):
    """One joint model of three levels, and a guide of its personal latents."""

    @property
    def network(self) -> Architecture:
        """Base network, head and likelihood."""
        ...

    def model(self, batch: Batch) -> None:
        """The joint model of the clients in ``batch``."""

    def guide(self, batch: Batch) -> None:
        """The clients' approximate posterior."""

    def expand(self, name: str, all_names: Iterable[str]) -> tuple[str, ...]:
        """All values called ``name`` or ``name.something``."""
        ...
