"""What the columns of a table's inputs are, as the architecture of a mixed-effects model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import UserError, unknown
from ...nn.architecture import Architecture
from ...nn.functional import Network
from ...nn.head import LinearHead
from .responses import Family

#: what a column of ones is called
INTERCEPT = ("Intercept", "1")
#: of columns
Values = Sequence[float] | np.ndarray
#: what a row may have beside the columns of effects, in the order of the inputs' columns
EXTRAS = ("offset", "trials", "known", "event", "weight")


@dataclass(frozen=True)
class Units:
    """How columns are centred and scaled before anything is computed from them: (column - centre) / scale.

    Attributes:
        centre, scale: of each column.
    """

    centre: tuple[float, ...]
    scale: tuple[float, ...]

    @classmethod
    def of(cls, names: Sequence[str], mean: Values, rms: Values, blocks: Sequence[int]) -> Units:
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
                # (a column that does not vary but for rounding is no intercept's business: it stays where it is)
                moved, spread = (moved, spread) if spread > 1e-7 * abs(moved) else (0.0, float(rms[k]))
                centre.append(moved)
                scale.append(spread or 1.0)
            first += size
        return cls(tuple(centre), tuple(scale))

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


class Columns(NamedTuple):
    """What a design's columns are, for some rows.

    Attributes:
        x: of the fixed effects, in the design's units, (S, n, p).
        z: of the random effects, likewise, (S, n, q).
        offset: of the linear predictor, (S, n), as all that follows; None where there is none.
        trials: of which the response counts the successes.
        known: standard errors of the response.
        event: whether a time ended with one (1), or was cut off (0).
        weight: how many rows each one stands for.
    """

    x: Tensor
    z: Tensor
    offset: Tensor | None = None
    trials: Tensor | None = None
    known: Tensor | None = None
    event: Tensor | None = None
    weight: Tensor | None = None


@dataclass(frozen=True)
class Design(Architecture):
    """What the columns of a table's inputs are: [fixed | random | extras].

    Models are fitted to columns that are centred and scaled (:class:`Units`), whose coefficients say the same: where a
    table's columns lie is no matter.

    Attributes:
        fixed: names of the columns of x_ij.
        random: names of the columns of z_ij.
        family: of the response.
        extras: what rows have beside effects, of :data:`EXTRAS` and in their order.
        levels: of an ordinal response, else 0.
        centre, scale: about where the linear predictor lies, and how far it spreads: where a fit begins.
        blocks: how many random effects each random term of the formula has; those of different terms have no
            correlations.
        fixed_units, random_units: of the columns.
    """

    fixed: tuple[str, ...] = ()
    random: tuple[str, ...] = ()
    family: Family = "gaussian"
    extras: tuple[str, ...] = ()
    levels: int = 0
    centre: float = 0.0
    scale: float = 1.0
    blocks: tuple[int, ...] = ()
    fixed_units: Units = Units((), ())
    random_units: Units = Units((), ())

    @classmethod
    def of(
        cls, fixed: Sequence[str], random: Sequence[str], family: Family = "gaussian", extras: Sequence[str] = (),
        levels: int = 0, centre: float = 0.0, scale: float = 1.0, blocks: Sequence[int] = (),
        fixed_units: Units | None = None, random_units: Units | None = None,
    ) -> Design:  # fmt: skip
        """A design with these columns.

        Raises:
            UserError: without columns, for an unknown family, or for what it does not have or lacks.
        """
        if not fixed or not random:
            raise UserError("a mixed-effects design needs at least one fixed and one random column")
        if family not in get_args(Family):
            raise unknown("family", family, get_args(Family))
        if strange := [name for name in extras if name not in EXTRAS]:
            raise unknown("extra column", strange[0], EXTRAS)
        if "known" in extras and family != "gaussian":
            raise UserError(f"known standard errors belong to a gaussian response, not a {family} one")
        if family == "ordinal" and not any(name in INTERCEPT for name in fixed):
            raise UserError("an ordinal response has thresholds, which are an intercept: write y ~ 1 + ...")
        head, (p, q) = LinearHead(len(fixed) + len(random), 1), (len(fixed), len(random))
        return cls(
            Network(nn.Identity()), head, None, "design", fixed=tuple(fixed), random=tuple(random), family=family,
            extras=tuple(extras), levels=levels, centre=centre, scale=scale, blocks=tuple(blocks) or (q,),
            fixed_units=fixed_units or Units((0.0,) * p, (1.0,) * p),
            random_units=random_units or Units((0.0,) * q, (1.0,) * q),
        )  # fmt: skip

    def split(self, inputs: Tensor) -> Columns:
        """The columns of rows (S, n, p + q + extras)."""
        p, q = len(self.fixed), len(self.random)
        more = dict(zip(self.extras, inputs[..., p + q :].unbind(-1), strict=True))
        for name in ("trials", "known", "weight"):
            if name in more:  # (rows of a template have none)
                more[name] = torch.where(more[name] > 0, more[name], 1.0)
        x, z = self.fixed_units.of_columns(inputs[..., :p]), self.random_units.of_columns(inputs[..., p : p + q])
        return Columns(x, z, **more)

    @property
    def known(self) -> bool:
        """Whether the response's standard errors are known."""
        return "known" in self.extras

    @property
    def width(self) -> int:
        """Columns of the inputs."""
        return len(self.fixed) + len(self.random) + len(self.extras)

    @property
    def offset(self) -> float:
        """What is added to every linear predictor: where there is an intercept, coefficients are around the centre."""
        return self.centre if any(name in INTERCEPT for name in self.fixed) else 0.0
