"""What responses that count successes among trials share."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..errors import UserError
from .base import Response
from .reading import Cells, Observed


class ProportionResponse(Response):
    """Successes among trials, of a probability around logistic(eta)."""

    @classmethod
    def read(cls, cells: Cells) -> Observed:
        """See :class:`.base.Response`."""
        if cells.kind != "proportion":
            return super().read(cells)
        y, trials = cells.values.astype(float).T
        whole = np.isfinite(cells.values.astype(float)).all() and (cells.values == np.floor(cells.values)).all()
        if not whole or (y < 0).any() or (y > trials).any() or (trials < 1).any():
            raise UserError(f"{cells.name} is whole numbers, of at least one trial, and no more successes than trials")
        return Observed(y, trials)

    @classmethod
    def centre_parts(cls, y: np.ndarray, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """See :class:`.base.Response`."""
        return np.stack([y, rows.get("trials", np.ones_like(y))], 1)

    @classmethod
    def centre(cls, total: float, count: float) -> float:
        """See :class:`.base.Response`."""
        mean = min(max(total / count, 1 / count), 1 - 1 / count)
        return float(np.log(mean) - np.log1p(-mean))
