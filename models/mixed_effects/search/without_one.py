"""Estimates without each site where the others do not know all coefficients.

The others' information A has directions N of which they know nothing: a level of a category that one site alone has.
Coefficients with no part in them are estimated, A^+ b; the rest are not numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: an eigenvalue of the others' information, over all sites' diagonal, below which they know nothing of a direction
MIN_EIGENVALUE = 1e-9
#: a part in such directions, over the coefficient's size, that is none
NO_PART = 1e-6


def known_alone(
    others: Tensor, information: Tensor, linear: Tensor, unit: Tensor, turn: Tensor
) -> tuple[Tensor, Tensor]:
    """The estimates (R, p) in the design's units, mended where the others know too little, and which coefficients in
    the table's units are not known without the site, (R, p).

    Args:
        others: estimates as they are where all is known, (R, p).
        information, linear: of the others, (R, p, p) and (R, p).
        unit: all sites' information about each coefficient, (p,).
        turn: from the design's units to the table's, (p, p).
    """
    scale = torch.where(unit > 0, unit, 1).rsqrt()
    values, vectors = torch.linalg.eigh((information * scale[:, None] * scale).nan_to_num(0.0))
    empty = values < MIN_EIGENVALUE
    inverse = torch.where(empty, 0.0, 1 / torch.where(empty, 1.0, values))
    least = (vectors * inverse[:, None]) @ (vectors.mT @ (scale * linear)[..., None])
    nowhere = turn @ (scale[:, None] * vectors * empty[:, None])
    unknown = nowhere.norm(dim=2) > NO_PART * (turn * scale).norm(dim=1)
    return torch.where(empty.any(1, keepdim=True), scale * least.squeeze(-1), others), unknown
