"""Which explored points no one is asked about: a scale so small beside the responses that sites would refuse it.

Where degrees of freedom are next to flat a proposal's long tails reach scales that have no mass. Sites refuse a scale
that cuts their responses at a value; see :mod:`.ranges`. Such a point counts as one without a height. Where more than a
few of a round are such, there may be mass: then all are asked about, and sites say what they refuse.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..model.equations import MixedModel
from .ranges import EXPLORED

#: responses of a site spread at most so many times as those of all, mostly
MAX_SPREAD_RATIO = 1.5
#: of a round's points, at most: the proposal's tails have some 20 times the density's mass
SHARE = 1 / 32


def too_narrow(method: MixedModel, points: Tensor) -> Tensor:
    """Which points (M, k) are not asked about, (M,) of bool.

    Args:
        method: whose.
        points: as broadcast, not coordinates.
    """
    width = method.response_family.width(method.parts(points))
    if width is None:
        return torch.zeros(len(points), dtype=torch.bool)
    narrow = (
        method.response_family.unit / width.reshape(len(points), -1).amin(1) > EXPLORED.steepness / MAX_SPREAD_RATIO
    )
    return narrow & (narrow.double().mean() <= SHARE)
