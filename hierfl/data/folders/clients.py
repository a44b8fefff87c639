"""Clients one after the other, as arrays whose rows say whose they are."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ...errors import UserError
from ..frames import is_table
from ..labels import one_column
from ..raw_values import number_array

log = logging.getLogger("hierfl")


class ClientArrays(NamedTuple):
    """Inputs (N, *event), or a table; targets (N,); the client of each row, (N,)."""

    x: Any
    y: np.ndarray
    client: np.ndarray


def joined_clients(clients: Iterable[Any], name: str) -> ClientArrays:
    """All clients' rows, in their order.

    Args:
        clients: (client, inputs (n, *event), targets (n,)) of each; inputs are arrays, tensors or tables.
        name: of the data, for messages.

    Raises:
        UserError: for other entries, a client that comes twice, and inputs that do not fit together.
    """
    names: list[Any] = []
    xs: list[Any] = []
    ys: list[np.ndarray] = []
    for number, entry in enumerate(clients):
        if not isinstance(entry, tuple | list) or len(entry) != 3:
            raise UserError(f"{name}: a client is (its name, inputs, targets); entry {number} is not")
        client, x, y = entry
        if not isinstance(client, str | int | np.integer | np.str_) or isinstance(client, bool):
            raise UserError(f"{name}: the name of client {number} is {client!r}, and names are text or whole numbers")
        rows: Any = x if is_table(x) else number_array(x, f"{name}: inputs of client {client}")
        y = one_column(y, f"{name}: targets of client {client}")
        if len(rows) != len(y):
            raise UserError(f"{name}: client {client} has {len(rows)} inputs and {len(y)} targets")
        if xs and is_table(rows) != is_table(xs[0]):
            raise UserError(f"{name}: client {client} has a table as its inputs, and others arrays")
        if xs and not is_table(rows) and rows.shape[1:] != xs[0].shape[1:]:
            raise UserError(f"{name}: inputs of client {client} have shape {rows.shape[1:]}, others {xs[0].shape[1:]}")
        if xs and is_table(rows) and list(rows.columns) != list(xs[0].columns):
            raise UserError(f"{name}: client {client} has other columns than those before, or in another order")
        names.append(client)
        xs.append(rows)
        ys.append(y)
    if not names:
        raise UserError(f"{name}: there is no client")
    if len({str(client) for client in names}) < len(names):
        twice = next(client for client in names if [str(other) for other in names].count(str(client)) > 1)
        raise UserError(f"{name}: client {twice} comes twice")
    # Of uint8 alone 255 is white, and a type for all would hide it.
    pixels = [client for client, rows in zip(names, xs, strict=True) if _type(rows) == "uint8"]
    fractions = [client for client, rows in zip(names, xs, strict=True) if _type(rows).startswith("float")]
    if pixels and fractions:
        raise UserError(
            f"{name}: inputs of client {pixels[0]} are uint8, as pixels from 0 to 255 are, and those of client "
            f"{fractions[0]} fractions: give all of them in one type and unit"
        )
    if empty := [str(client) for client, rows in zip(names, xs, strict=True) if not len(rows)]:
        log.warning("%s: without rows, and left out: %s", name, ", ".join(empty))
    text = sorted({str(y.dtype.kind) in "US" for y in ys})
    if len(text) > 1:
        raise UserError(f"{name}: some clients' targets are words, and others' numbers")
    sizes = [len(y) for y in ys]
    return ClientArrays(_stacked(xs), np.concatenate(ys), np.repeat(np.array([str(c) for c in names]), sizes))


def _type(rows: Any) -> str:
    """The type of a client's inputs; empty for a table, whose columns have types of their own."""
    return "" if is_table(rows) else str(rows.dtype)


def _stacked(xs: list[Any]) -> Any:
    if not is_table(xs[0]):
        return np.concatenate(xs)
    import pandas as pd

    return pd.concat(xs, ignore_index=True)
