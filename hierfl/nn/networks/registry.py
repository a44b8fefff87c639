"""The kinds of networks that have a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn

#: of the shape of an input, the widths in each part of the name, what makes a ReLU, and the rate of dropout
Make = Callable[[torch.Size, Sequence[list[int]], Callable[[], nn.Module], float], nn.Sequential]
Made = TypeVar("Made", bound=Make)


@dataclass(frozen=True)
class NetworkKind:
    """A kind of network.

    Attributes:
        written: how it is written, "cnn:C,C,...:H,H,...": its name, and widths after each colon.
        make: see :data:`Make`.
        images: whether inputs must be (channels, height, width).
        options: names of the numbers that may follow (:data:`hierfl.nn.networks.spec.OPTIONS`).
        head_bias: whether the head above it has a bias.
        norm: what replaces its batch norm where nothing is said, see :func:`.weights.with_weights`.
    """

    written: str
    make: Make
    images: bool = False
    options: tuple[str, ...] = ()
    head_bias: bool = True
    norm: str = "batch"

    @property
    def parts(self) -> int:
        """How many lists of widths its name has."""
        return self.written.count(":")


#: every kind, by the beginning of its name
KINDS: dict[str, NetworkKind] = {}
#: what can be written, and what it is: kinds, and what may follow them
NETWORKS: dict[str, str] = {}


def network(
    written: str, description: str, *, images: bool = False, options: tuple[str, ...] = (), head_bias: bool = True,
    norm: str = "batch",
) -> Callable[[Made], Made]:  # fmt: skip
    """Registers a function that makes a network; see :class:`NetworkKind`."""

    def registered(make: Made) -> Made:
        KINDS[written.partition(":")[0]] = NetworkKind(written, make, images, options, head_bias, norm)
        options_of_all = {name: NETWORKS.pop(name) for name in [*NETWORKS] if name.startswith("NETWORK,")}
        NETWORKS.update({written: description, **options_of_all})
        return make

    return registered
