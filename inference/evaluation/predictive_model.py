"""What predictions need of a method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from torch import Tensor

from ..local.base import LocalStep
from ..method.schedule import Schedule
from ..objective.joint_model import JointModel
from ..state import State


class PredictiveModel(JointModel, Protocol):
    """A joint model that predicts for its clients, for the population, and for clients that were never seen.

    See :class:`hierfl.inference.method.base.Method` for each of these.
    """

    name: ClassVar[str]
    global_draws: int
    independent_draws: ClassVar[bool]
    prior_has_seen_data: ClassVar[bool]
    conditions: ClassVar[bool]
    settings: Any

    @property
    def has_global_model(self) -> bool:
        """Whether the shared values alone predict."""
        ...

    def schedule(self) -> Schedule:
        """The schedule, which has the final steps."""
        ...

    def new_client_steps(self) -> Sequence[LocalStep]:
        """What a client that was never seen does."""
        ...

    def shared_draws(self, shared: State, number: int) -> State:
        """The shared values at draws of their own posterior."""
        ...

    def population_draws(self, shared: State, number: int) -> tuple[Sequence[str], Tensor] | None:
        """What is reported of them."""
        ...

    def new_client_terms(self, personal: State) -> State:
        """The values of each client that the next one begins with."""
        ...

    def init_new_client(self, means: State, initial: State, personal: State) -> State:
        """The values that a new client begins with."""
        ...

    def summary_terms(self, fitted: Any) -> State:
        """Sums over clients."""
        ...

    def client_summary(self, values: State) -> State:
        """Numbers of each client."""
        ...

    def population_summary(self, fitted: Any) -> tuple[Any, dict[str, float]]:
        """What there is to say of the shared values."""
        ...
