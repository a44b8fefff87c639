"""What a round can ask of clients: one list, from which messages, their form and their cost follow.

Of client j with the log marginal likelihood l_j(theta), in the order of a message's fields:

    expansion      l_j(at + d)  ~  height + slope^T d - d^T curvature d / 2        at the one point "at"
    heights        l_j(points_m),  m = 1 ... M                                     at the points "points"
    containment    squares of the columns of X, and what is left of them           at no point
    counts         1, n_j, and the groups inside                                   at no point

Of a gaussian response l_j is a quadratic in beta, and what is sent are its coefficients (:mod:`.cross_products`); of
groups of clients l_j is given their effects, at K nodes for each point (:mod:`.region_nodes`). How clients answer is
their likelihood's (:class:`.protocol.Likelihood`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from torch import Tensor

from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.state import State

from ..likelihood import containment
from ..model.equations import MixedModel

#: of tensors, by name
Shapes = dict[str, tuple[int, ...]]
#: a statistic that is not known yet: shared values are numbers
NOT_YET = -1.0
#: numbers that a message's part at many points holds, about; and the fewest points that a round of many has
MESSAGE_NUMBERS, FEWEST_POINTS = 8192, 16


class Phase(IntEnum):
    """Phases of the rounds. Tests of standard deviations that outlast EXPLORE have the number of PROFILE."""

    CLIMB, MODE, EXPLORE, DONE, PROFILE, RESTRICT = range(6)


@dataclass(frozen=True)
class Asked:
    """What clients answer from.

    Attributes:
        method: whose likelihood.
        shared: as broadcast.
        rows: see :meth:`.protocol.Likelihood.rows`.
        chunk: the clients; None where only sums of their rows are available.
    """

    method: MixedModel
    shared: Mapping[str, Tensor]
    rows: Any
    chunk: ClientChunk | None = None


@dataclass(frozen=True)
class Request:
    """One question to every client.

    Attributes:
        name: of the question.
        at: the shared value that says at which points; empty for none.
        reply: shapes of one client's reply, by a method; nothing where it is never asked.
        answer: the clients' part, {name: (S, *shape)}.
        points: at how many the likelihood of a client's rows is evaluated, by the shared values; nodes count.
    """

    name: str
    at: str
    reply: Callable[[MixedModel], Shapes]
    answer: Callable[[Asked], State]
    points: Callable[[Mapping[str, Tensor]], int]


def most_points(method: MixedModel) -> int:
    """Points of a round of many, M, a power of two."""
    likelihood = method.likelihood
    fitting = 2 ** ((MESSAGE_NUMBERS // likelihood.cells).bit_length() - 1)
    return int(min(likelihood.most_points, max(FEWEST_POINTS, fitting)))


def _around(method: MixedModel) -> Shapes:
    return {name: shape for name, shape in _form(method).items() if name != "many"}


def _many(method: MixedModel) -> Shapes:
    return {"many": _form(method)["many"]}


def _form(method: MixedModel) -> Shapes:
    return method.likelihood.form(most_points(method))


def _contained(asked: Asked) -> State:
    assert asked.chunk is not None
    return containment.sums(asked.method, asked.chunk)


def _counted(asked: Asked) -> State:
    assert asked.chunk is not None
    return {"counts": asked.method.likelihood.counts(asked.chunk)}


def _nodes(shared: Mapping[str, Tensor]) -> int:
    """The number of nodes of each point, at a client: K of its own group's, (R, K, q) of all; points of a stencil."""
    if "effects.crossed_at" in shared:
        return len(shared["effects.crossed_at"])
    return shared["effects.nodes"].shape[1] if "effects.nodes" in shared else 1


EXPANSION = Request(
    "expansion", "at", _around, lambda asked: asked.method.likelihood.around(asked.rows, asked.shared), _nodes
)
HEIGHTS = Request(
    "heights", "points", _many, lambda asked: {"many": asked.method.likelihood.at_points(asked.rows, asked.shared)},
    lambda shared: len(shared["effects.points"]) * (1 if "effects.crossed_at" in shared else _nodes(shared)),
)  # fmt: skip
CONTAINMENT = Request(
    "containment", "", lambda method: containment.sizes(method) if method.restricted else {}, _contained, lambda _: 0
)
COUNTS = Request("counts", "", lambda method: {"counts": (2 + len(method.inside),)}, _counted, lambda _: 0)
#: all requests
REQUESTS = (EXPANSION, HEIGHTS, CONTAINMENT, COUNTS)
#: what a round carries beside the counts, by its phase
CARRIED: Mapping[Phase, tuple[Request, ...]] = {
    Phase.CLIMB: (EXPANSION,),
    Phase.RESTRICT: (EXPANSION, CONTAINMENT),
    Phase.PROFILE: (EXPANSION,),
    Phase.MODE: (EXPANSION,),
    Phase.EXPLORE: (HEIGHTS,),
    Phase.DONE: (),
}


def carried(method: MixedModel, shared: Mapping[str, Tensor]) -> tuple[Request, ...]:
    """What a round asks, as its shared values say."""
    phase = Phase(int(shared["effects.phase"]))
    beside = (EXPANSION,) if phase == Phase.EXPLORE and between(method, shared) else ()
    return tuple(request for request in (*CARRIED[phase], *beside, COUNTS) if request.reply(method))


def between(method: MixedModel, shared: Mapping[str, Tensor]) -> bool:
    """Whether a round of many points is about one point, too: that of a test of :mod:`.boundary`.

    Where clients answer at nodes of their groups it is not, since that point's nodes move.
    """
    if "effects.boundary" not in shared or not method.likelihood.both_at_once:
        return False
    return bool((shared["effects.boundary"] == NOT_YET).any())


def evaluated(method: MixedModel, shared: Mapping[str, Tensor]) -> int:
    """The number of points at which a round evaluates the likelihood of a client's rows."""
    return sum(request.points(shared) for request in carried(method, shared))
