"""A federation without its rows: what predictions need to know of the data that were fitted.

Kept are the clients' names and numbers of rows, shapes, scales of inputs and responses, names of labels and columns.
No number of a single row is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor

from ..errors import UserError
from ..schema import AnyOf, Number, Schema
from .federation import SPLITS, Federation
from .response_units import ResponseUnits

#: of what a federation knows of its data, entries that have something for each row, or are written by themselves
SEPARATE_ENTRIES = frozenset({"index", "reader_record"})
SIZES = [Number(int, 0)]
#: what is kept as json
FEDERATION: Schema = {
    "ids": [str], "sizes": dict.fromkeys(SPLITS, SIZES), "event": SIZES, "inputs": str, "targets": str,
    "task": str, "classes": Number(int, 0), "about": dict, "dtype": str, "extent": [Number()], "digest": str,
    "response_units": AnyOf([Number()], None), "standard_response": bool,
}  # fmt: skip


@dataclass(frozen=True, repr=False)
class RowlessFederation(Federation):
    """A federation whose rows are elsewhere.

    Attributes:
        known_extent: least and largest number of the raw inputs that were fitted.
        known_digest: fingerprint of the rows that were fitted.
    """

    known_extent: tuple[float, float] = (0.0, 0.0)
    known_digest: str = ""

    @property
    def extent(self) -> tuple[float, float]:
        """The extent of the rows that were fitted."""
        return (float(self.x.min()), float(self.x.max())) if len(self.x) else self.known_extent

    def examples(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Refused, but for rows that a new client has given.

        Raises:
            UserError: for rows that are not here.
        """
        if not len(self.x) and index.numel():
            raise needs_rows()
        return super().examples(index)

    def digest(self) -> str:
        """The digest of the rows that were fitted."""
        return self.known_digest


def needs_rows() -> UserError:
    """What is said where rows are needed that are not there."""
    return UserError(
        "this needs the rows that were fitted, and a run that was loaded has none: load_run(folder, rows=True) reads "
        "the data again"
    )


def is_plain(value: object) -> TypeGuard[Any]:
    """Whether json holds a value as it is."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and is_plain(part) for key, part in value.items())
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, str | bool | int | float)


def written(federation: Federation) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What is kept of a federation: json values (:data:`FEDERATION`), and its scales by name."""
    units = federation.response_units
    kept = {k: v for k, v in federation.about.items() if k not in SEPARATE_ENTRIES and is_plain(v)}
    record = {
        "ids": list(federation.ids), "sizes": {split: [int(n) for n in federation.sizes(split)] for split in SPLITS},
        "event": list(federation.event_shape), "inputs": name_of(federation.x.dtype),
        "targets": name_of(federation.y.dtype), "task": federation.task, "classes": int(federation.classes),
        "about": kept, "dtype": name_of(federation.dtype), "extent": list(federation.extent),
        "digest": federation.digest(), "response_units": None if units is None else list(units),
        "standard_response": bool(federation.standard_response),
    }  # fmt: skip
    scales = {"mean": federation.mean, "std": federation.std}
    return record, {name: value for name, value in scales.items() if value is not None}


def read(record: Mapping[str, Any], scales: Mapping[str, Tensor]) -> RowlessFederation:
    """The federation that :func:`written` wrote, without rows."""
    units = record["response_units"]
    splits: dict[str, Any] = {split: _places(record["sizes"][split]) for split in SPLITS}
    return RowlessFederation(
        torch.zeros((0, *record["event"]), dtype=type_of(record["inputs"])),
        torch.zeros(0, dtype=type_of(record["targets"])),
        **splits,
        global_test=torch.zeros(0, dtype=torch.long), ids=record["ids"], task=record["task"],
        classes=record["classes"], mean=scales.get("mean"), std=scales.get("std"), about=record["about"],
        dtype=type_of(record["dtype"]), response_units=None if units is None else ResponseUnits(*units),
        standard_response=record["standard_response"], known_extent=tuple(record["extent"]),
        known_digest=record["digest"],
    )  # fmt: skip


def _places(sizes: Sequence[int]) -> list[Tensor]:
    """Index sets of so many rows, none of which is there."""
    return [torch.zeros(1, dtype=torch.long).expand(n) for n in sizes]


def name_of(dtype: torch.dtype) -> str:
    """A type as it is written."""
    return str(dtype).removeprefix("torch.")


def type_of(name: str) -> torch.dtype:
    """The type that is written so.

    Raises:
        UserError: for another name.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise UserError(f"{name!r} is no type of numbers that torch has")
    return dtype
