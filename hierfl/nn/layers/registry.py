"""The layers that are computed for many clients at once: which there are, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .by_example import by_example

#: of the layer, its own values by their names, and its input
Apply = Callable[[Any, Mapping[str, Tensor], Tensor], Tensor]


def _by_example(layer: nn.Module, own: Mapping[str, Tensor], x: Tensor) -> Tensor:
    return by_example(layer, x)


def _as_it_is(layer: nn.Module, own: Mapping[str, Tensor], x: Tensor) -> Tensor:
    return layer(x)


def _always(layer: Any) -> bool:
    return True


def _never(layer: Any) -> bool:
    return False


@dataclass(frozen=True)
class LayerKind:
    """How a kind of layer is computed.

    Attributes:
        apply: its values shared or one set per client, input (S, n, *event).
        alone: with one client's values, input (n, *event).
        known: whether this one, with its settings, is computed so.
        sees_pictures: whether its input is a picture, which nothing flat may come before.
        by_client: whether a CPU runs it, and all before it, client by client.
        flat: whether what it gives is flat.
        rises: whether it is a function of single numbers that never falls.
    """

    apply: Apply = _by_example
    alone: Apply = _as_it_is
    known: Callable[[Any], bool] = _always
    sees_pictures: bool = False
    by_client: bool = False
    flat: bool = False
    rises: Callable[[Any], bool] = _never


#: by exact type: a subclass may do something else
LAYERS: dict[type[nn.Module], LayerKind] = {}


def kind_of(layer: nn.Module) -> LayerKind | None:
    """How a layer is computed; None for one that is not known."""
    kind = LAYERS.get(type(layer))
    return kind if kind is not None and kind.known(layer) else None
