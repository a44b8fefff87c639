"""Units in which columns are centred and scaled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

#: what a column of ones is called
INTERCEPT = ("Intercept", "1")
#: of columns
Values = Sequence[float] | np.ndarray


@dataclass(frozen=True)
class Units:
    """How columns are centred and scaled before anything is computed from them: (column - centre) / scale.

    Attributes:
        centre, scale: of each column.
    """

    centre: tuple[float, ...]
    scale: tuple[float, ...]

    @classmethod
    def from_moments(cls, names: Sequence[str], mean: Values, rms: Values, blocks: Sequence[int]) -> Units:
        """Columns around their means, where their block has an intercept that takes the difference up.

        Args:
            names: of the columns.
            mean, rms: their means and root mean squares.
            blocks: how many columns go together, block after block.
        """
        centre, scale, first = [], [], 0
        for size in blocks:
            block = names[first : first + size]
            movable = any(name in INTERCEPT for name in block)
            for k in range(first, first + size):
                moved = float(mean[k]) if movable and names[k] not in INTERCEPT else 0.0
                spread = float(np.sqrt(max(float(rms[k]) ** 2 - moved**2, 0.0)))
                # A column that does not vary but for rounding is no intercept's business: it stays where it is.
                moved, spread = (moved, spread) if spread > 1e-7 * abs(moved) else (0.0, float(rms[k]))
                centre.append(moved)
                scale.append(spread or 1.0)
            first += size
        return cls(tuple(centre), tuple(scale))

    @property
    def without_last(self) -> Units:
        """The units of all columns but the last."""
        return Units(self.centre[:-1], self.scale[:-1])

    def of_columns(self, columns: Tensor) -> Tensor:
        """Columns (..., k) in these units."""
        centre, scale = (columns.new_tensor(v) for v in (self.centre, self.scale))
        return (columns - centre) / scale

    def to_users(self, names: Sequence[str], blocks: Sequence[int], like: Tensor) -> Tensor:
        """T (k, k): coefficients c of columns in these units are T c in the table's.

        A block's intercept takes up what its other columns' centres leave.
        """
        centre, scale = (like.new_tensor(v) for v in (self.centre, self.scale))
        turn, first = torch.diag(1 / scale), 0
        for size in blocks:
            for k in range(first, first + size):
                if names[k] in INTERCEPT:
                    turn[k, first : first + size] = (
                        turn[k, first : first + size] - (centre / scale)[first : first + size]
                    )
                    break
            first += size
        return turn


#: of no columns
NO_UNITS = Units((), ())
