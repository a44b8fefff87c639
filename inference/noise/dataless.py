"""Clients without their data: what every part of a private fit is given that adds no noise.

A step or a rule that reads data from it is stopped, by name. So nothing without noise can depend on a row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from hierfl.data.batch import Batch
from hierfl.data.federation import Federation
from hierfl.rng import client_keys

from ..clients.chunk import ClientChunk
from ..objective.constant_latent import DataAccessed


class DatalessFederation:
    """A federation's form, names and keys. Every client has the same public number of rows; anything else is refused.

    Args:
        federation: whose form.
        rows: public number of rows of a client.
    """

    def __init__(self, federation: Federation, rows: int) -> None:
        self.device, self.dtype, self.task, self.classes = (
            federation.device, federation.dtype, federation.task, federation.classes,
        )  # fmt: skip
        self.event_shape, self.ids = federation.event_shape, list(federation.ids) or ["client"]
        self.clients, self.keys = len(self.ids), client_keys(self.ids)
        self._rows, self._form, self.amounts = rows, federation, [rows] * self.clients

    def sizes(self, split: str = "train") -> Sequence[int]:
        """The public number, for each client."""
        if split != "train":
            raise DataAccessed(f"sizes of {split}")
        return [self._rows] * self.clients

    def template(self, rows: int = 1, width: int = 1) -> Batch:
        """Rows of masked zeros."""
        return self._form.template(rows, width)

    def __getattr__(self, name: str) -> Any:
        raise DataAccessed(name)


class _NoExamples:
    """Stands instead of the rows' examples."""

    def __getattr__(self, name: str) -> Any:
        raise DataAccessed(f"examples ({name})")


def dataless(chunk: ClientChunk, rows: int) -> ClientChunk:
    """The rows with their values and without their data.

    Args:
        chunk: the rows.
        rows: public number of rows of a client, which n_j then is.
    """
    form: Any = DatalessFederation(chunk.federation, rows)
    examples: Any = _NoExamples()
    return dataclasses.replace(chunk, federation=form, examples=examples)
