"""The ways of cutting a data set into clients, by name; each is registered by the file of its kind in this room."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ..pool import PooledDataset

Index = np.ndarray
Parts = tuple[list[Index], list[Index]]  # a client's training and test indices into the pool, train before test
Make = TypeVar("Make", bound=Callable[..., Parts])


@dataclass(frozen=True)
class Split:
    """A way of cutting.

    Attributes:
        about: what it does, in a line.
        parameter: what its parameter is called; None for a split without one.
        make: of the pool, the number of clients, the parameter, a generator, and its options by name.
        whole: whether the parameter is a whole number.
        needs_labels: whether it cuts classifications only.
        names: of the clients, by what each is given; numbers without it.
        clients: the names of the clients where the data have them, of the pool and the number that is asked for.
        options: names of numbers that may follow the parameter.
        flags: names of options without a number.
    """

    about: str
    parameter: str | None
    make: Callable[..., Parts]
    whole: bool = True
    needs_labels: bool = True
    names: Callable[[PooledDataset, list[Index]], list[str]] | None = None
    clients: Callable[[PooledDataset, int], list[str]] | None = None
    options: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


#: every split, in the order in which it is listed
SPLITS: dict[str, Split] = {}


def split(
    name: str, description: str, parameter: str | None = None, *, whole: bool = True, needs_labels: bool = True,
    names: Callable[[PooledDataset, list[Index]], list[str]] | None = None,
    clients: Callable[[PooledDataset, int], list[str]] | None = None, options: tuple[str, ...] = (),
    flags: tuple[str, ...] = (),
) -> Callable[[Make], Make]:  # fmt: skip
    """Registers a function as a way of cutting; see :class:`Split`."""

    def registered(make: Make) -> Make:
        SPLITS[name] = Split(description, parameter, make, whole, needs_labels, names, clients, options, flags)
        return make

    return registered
