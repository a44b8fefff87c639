"""What a server knows of data that are at their sites: everything but the data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from .federation import SPLITS, Federation


def without_data(federation: Federation) -> Federation:
    """The outline of a federation: shapes, task, classes and how inputs are standardised, and no client."""
    nothing = torch.empty(0, dtype=torch.long, device=federation.device)
    empty: dict[str, Any] = {split: [] for split in SPLITS}
    none = federation.x[:0], federation.y[:0]
    return replace(federation, x=none[0], y=none[1], global_test=nothing, ids=[], outline=True, **empty)
