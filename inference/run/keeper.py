"""Writes checkpoints, as often as they cost little."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ..state import State
from .checkpoint import save


class CheckpointKeeper:
    """Writes checkpoints, as often as they cost at most a twentieth of the time."""

    def __init__(self, folder: Path | None) -> None:
        self.folder, self._cost, self._since = folder, 0.0, time.perf_counter()

    def due(self) -> bool:
        return time.perf_counter() - self._since > 20 * self._cost

    def save(self, state: State, record: dict[str, Any]) -> None:
        assert self.folder is not None
        start = time.perf_counter()
        save(self.folder, state, record)
        self._since = time.perf_counter()
        self._cost = self._since - start
