"""Numbers of the population that a method shows at every evaluation, such as a spread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from torch import Tensor

from ..state import State


@runtime_checkable
class PopulationNumbers(Protocol):
    """A method whose shared values are summed up by a few numbers; see :func:`population_numbers`."""

    def population_numbers(self, shared: State) -> Mapping[str, Tensor | float]:
        """Single numbers by name, from the shared values, {name: (*shape)}."""
        ...


def population_numbers(method: object, shared: State) -> dict[str, float]:
    """Columns of ``metrics.csv``, which trackers get as well: ``population_NAME``; none by default."""
    if not isinstance(method, PopulationNumbers):
        return {}
    return {f"population_{name}": float(value) for name, value in method.population_numbers(shared).items()}
