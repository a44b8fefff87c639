"""Names of what server and clients keep, and what a round is about."""

from __future__ import annotations

from enum import IntEnum

from torch import Tensor

#: of the globals: mean, precision, what the round is about, points of the exploration, kept draws, the
#: bound, and how many independent draws the points are worth
MEAN, PRECISION, PHASE, POINTS, DRAWS, BOUND, WORTH = (
    f"posterior.{part}" for part in ("mean", "precision", "phase", "points", "draws", "bound", "worth")
)
#: of a client's latents given those: a_j, C_j, L_j, the m they are around, the centring, the client's kept draws
OWN_MEAN, OWN_SLOPE, OWN_ROOT, AROUND, CENTRING, OWN_DRAWS = (
    f"own.{part}" for part in ("mean", "slope", "root", "around", "centring", "draws")
)
#: what was last counted of a client, see :mod:`.remembered`
OWN_SENT = "own.sent"
OWN_VALUES = (OWN_MEAN, OWN_SLOPE, OWN_ROOT, AROUND, CENTRING)
#: how many guides the server has kept; the number a client has seen, and its part of the guide at the last of them
ACCEPTED, OWN_ACCEPTED = "posterior.accepted", "own.accepted"
KEPT = tuple(f"{name}.kept" for name in OWN_VALUES)
#: draws of a client's latents at a point, and the exploration's diagnosis, see :mod:`.verdict`
INNER, VERDICT = "posterior.inner", "posterior.verdict"
#: centre, scale, skew and tail of each global, see :mod:`.marginals.transform`
SHAPE = "posterior.shape"
#: of each of the last rounds, see :mod:`.trace`
TRACE = "posterior.trace"


class Phase(IntEnum):
    """What a round is about: the guide's climb with few draws and with many, heights of points, nothing."""

    ROUGH, FINE, EXPLORE, DONE = range(4)


def is_phase(value: Tensor) -> bool:
    """Whether a number () says what a round is about."""
    return float(value) in [float(phase) for phase in Phase]
