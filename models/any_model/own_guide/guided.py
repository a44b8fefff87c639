"""What the parts of a fit with a user's guide know of their method, so that none of them imports it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from ..plain import PlainModel
from .bound import Parts
from .run import Guide


class Guided(PlainModel, Protocol):
    """See :class:`.method.OwnGuide`.

    Attributes:
        users_guide: as it was read.
        parts: model and guide.
    """

    users_guide: Guide
    parts: Parts

    @property
    def p(self) -> int:
        """Unconstrained numbers of the globals."""
        ...

    @property
    def checks(self) -> bool:
        """Whether draws of the guide are weighed by the model."""
        ...

    @property
    def check_points(self) -> int:
        """M, draws of the globals that are weighed."""
        ...

    @property
    def fit_draws(self) -> int:
        """Draws of the guide in a step, K."""
        ...

    def kept_noise(self, draws: int, seed: int) -> Tensor:
        """Noise of the globals' kept draws, (D, G)."""
        ...

    def check_noise(self, seed: int) -> Tensor:
        """Noise of the draws that are weighed, (M, G)."""
        ...
