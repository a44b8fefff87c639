"""The standard deviation of a client's own response."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..clients.chunk import ClientChunk
from ..clients.squared_residuals import mean_squared_residuals
from ..server.rules.response_sd import LEAST_SD
from .closed_form import SetValue


@dataclass(frozen=True)
class OwnResponseSd(SetValue):
    """s_j^2 = E_q (y - E[y | x, w_j])^2, a mean over the client's training examples: the M-step of its own variance."""

    def new_value(self, chunk: ClientChunk, old: Tensor) -> Tensor:
        """(S, 1)."""
        return mean_squared_residuals(chunk).sqrt().clamp_min(LEAST_SD).view_as(old)
