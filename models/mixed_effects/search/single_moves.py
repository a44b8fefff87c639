"""Sites whose answers contradict each other: what rows say of the coefficients does not move with the question.

A site's own estimate is A_j^-1 b_j at whatever point it is asked. Of a gaussian response it changes with the variances
alone, by about a standard error; of others a Newton step's error more, which all sites have. A site that asks for
another estimate in every round keeps a search from its end.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hierfl.inference.server.robust.standing import without_furthest
from hierfl.inference.state import State

#: of a site's step to the point that is asked about now, what its own estimate may be wrong by, of other responses
CURVED = 0.5


def moves_of(own: Tensor, information: Tensor, at: Tensor | None, memory: State) -> Tensor:
    """How far each site's own estimate has moved since it was first asked, and since the last round, (R,).

    In its own standard errors, of the round in which they were larger. Of other responses than gaussian ones the last
    round counts alone.

    Args:
        own: their own estimates, (R, p).
        information: A_j, (R, p, p).
        at: the coefficients that were asked about, (p,); None of a gaussian response.
        memory: of earlier rounds, by "first" and "last"; the round is added.
    """
    far = torch.zeros_like(own[:, 0])
    for when in ("first", "last") if at is None else ("last",):
        if f"{when}.own" in memory:
            informations = (memory[f"{when}.information"].to(own), information)
            step = torch.stack([_length(own - memory[f"{when}.own"].to(own), a) for a in informations]).amin(0)
            if at is not None:
                way = (at - memory[f"{when}.at"].to(own)).expand_as(own)
                step = step / (1 + CURVED * torch.stack([_length(way, a) for a in informations]).amax(0))
            far = far.maximum(step)
    now = {"own": own, "information": information} | ({} if at is None else {"at": at})
    for when in ("first", "last") if "first.own" not in memory else ("last",):
        memory.update({f"{when}.{k}": v for k, v in now.items()})
    return far.nan_to_num(0.0)


def _length(step: Tensor, information: Tensor) -> Tensor:
    """(R,) in standard errors, over all coefficients."""
    squares = (step * (information @ step[..., None]).squeeze(-1)).sum(1).clamp_min(0)
    return (squares / max(1, step.shape[1])).sqrt()


def beside_others(far: Tensor, index: Tensor) -> Tensor:
    """How far those of an index have moved, in units of the others, which count as one at least, (I,)."""
    squares = far[index].square().cpu().numpy()
    places = np.arange(len(squares) - 1)
    others = squares[places + (places >= np.arange(len(squares))[:, None])]
    wide = np.sqrt(without_furthest(others, len(squares)).mean(1))
    return far[index] / torch.from_numpy(np.maximum(1.0, wide)).to(far)
