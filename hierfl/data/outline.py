"""What a server knows of data that are at their sites: everything but the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from .federation import SPLITS, Federation
from .pool import Task


def outline_of(
    event: Sequence[int], task: Task, classes: int = 0, *, dtype: torch.dtype = torch.float32,
    mean: np.ndarray | None = None, std: np.ndarray | None = None, facts: Mapping[str, Any] | None = None,
) -> Federation:  # fmt: skip
    """A federation without clients, from what is known of their data.

    Args:
        event: the shape of one input.
        task, classes, mean, std: as of :class:`~hierfl.data.federation.Federation`.
        facts: where the data came from: ``about`` of the federation.
        dtype: of raw inputs; ``torch.uint8`` for images.
    """
    y = torch.zeros(0, dtype=torch.int64 if task == "classification" else torch.float64)
    nothing = torch.empty(0, dtype=torch.long)
    return Federation(
        torch.zeros((0, *event), dtype=dtype), y, [], [], [], nothing, [], task, classes,
        mean=None if mean is None else torch.as_tensor(mean), std=None if std is None else torch.as_tensor(std),
        about=dict(facts or {}), outline=True,
    )  # fmt: skip


def without_data(federation: Federation) -> Federation:
    """The outline of a federation: shapes, task, classes and how inputs are standardised, and no client."""
    nothing = torch.empty(0, dtype=torch.long, device=federation.device)
    empty: dict[str, Any] = {split: [] for split in SPLITS}
    none = federation.x[:0], federation.y[:0]
    return replace(federation, x=none[0], y=none[1], global_test=nothing, ids=[], outline=True, weights=None, **empty)
