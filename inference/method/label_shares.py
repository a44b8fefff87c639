"""What a method with label shares can do beside what every method declares (see :mod:`.capabilities`)."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor

from hierfl.ppl.label_shares import LabelShares

from ..state import State


@runtime_checkable
class HasLabelShares(Protocol):
    """A method whose predictions depend on how often each class comes at the client; see :func:`has_label_shares`."""

    @property
    def label_shares(self) -> bool:
        """Whether they do, with its settings."""
        ...

    def share_population(self, shared: State, counts: Tensor | None = None) -> LabelShares:
        """The population of label shares, or a client's posterior given its counts (..., C)."""
        ...

    def neutral_shares(self, shared: State) -> Tensor:
        """The shares for which its network predicts without an offset, (C,)."""
        ...

    def at_shares(self, shared: State, pi: Tensor) -> State:
        """Clients' values under which it predicts for shares pi ([K,] J, C), {name: ([K,] J, C)}."""
        ...


@runtime_checkable
class MayHaveLabelShares(Protocol):
    """A method whose label shares enter where they gain; see :func:`has_label_shares`."""

    def shares_entered(self, shared: State) -> bool:
        """Whether they are in the model that has been fitted."""
        ...


@runtime_checkable
class BalancesClasses(Protocol):
    """A method whose global model predicts as if all classes were equally frequent; see :func:`balances_classes`."""

    balances_classes: ClassVar[bool]


def has_label_shares(method: object, shared: State | None = None) -> bool:
    """Whether predictions depend on how often each class comes at the client; of a fit, where its values are given."""
    if not (isinstance(method, HasLabelShares) and method.label_shares):
        return False
    return shared is None or not isinstance(method, MayHaveLabelShares) or method.shares_entered(shared)


def balances_classes(method: object) -> bool:
    """Whether the global model is one for equal shares, not for the pooled ones."""
    return isinstance(method, BalancesClasses) and method.balances_classes
