"""What a fit was about in each of its last rounds: phase, bound, how far the guide has moved, worth of the points."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .names import Phase

if TYPE_CHECKING:
    import pandas as pd

#: rounds that are kept
ROUNDS_KEPT = 256
#: columns of the table
COLUMNS = ("round", "phase", "bound", "moved", "worth")


def no_trace() -> Tensor:
    """The trace before the first round, (LAST, 5): the round is 0 where there is none."""
    return torch.zeros(ROUNDS_KEPT, len(COLUMNS))


def traced(trace: Tensor, stage: Phase, round_: int, *, bound: Tensor, moved: float, worth: Tensor) -> Tensor:
    """Appends a round to the trace, and drops the oldest.

    Args:
        trace: (LAST, 5).
        stage: what the round was about.
        round_: its number, from 1.
        bound: the best so far.
        moved: of the guide's step: of a mean in standard deviations, or of a log standard deviation, the longest; of a
            user's guide, of a parameter.
        worth: of the points of the exploration, in independent draws.
    """
    row = trace.new_tensor([round_, float(stage), float(bound), moved, float(worth)])
    return torch.cat([trace[1:], row[None]])


def trace_table(trace: Tensor) -> pd.DataFrame:
    """A row for each round: round, phase ("rough", "fine", "explore", "done"), bound, moved, worth."""
    import pandas as pd

    table = pd.DataFrame(trace[trace[:, 0] > 0].cpu().numpy(), columns=list(COLUMNS))
    table["round"] = table["round"].astype(int)
    table["phase"] = [Phase(int(value)).name.lower() for value in table["phase"]]
    return table


def last_move(trace: Tensor) -> float:
    """How far the guide's last step of the climb was, in standard deviations; 0 where there was none."""
    climbed = trace[(trace[:, 0] > 0) & (trace[:, 1] <= Phase.FINE)]
    return float(climbed[-1, 3]) if len(climbed) else 0.0
