"""What an answer costs: at how many points a site's rows are evaluated for it.

A round costs the points that its method says (:func:`~hierfl.inference.method.capabilities.evaluated_points`). Scores,
sums and a question of a calibration cost one each. What is agreed on before the first round costs nothing: it is
answered once. The end costs nothing: no number leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...method.base import Method
from ...method.capabilities import evaluated_points, explored_points, has_fixed_sums
from ...state import State

#: kinds of requests that are answered from the rows, beside a round
ONE_EACH = ("scores", "sums", "calibration")


def points_of(method: Method, head: Mapping[str, Any], tensors: State) -> int:
    """The number of points at which a request evaluates a site's rows.

    Args:
        method: the site's.
        head: of the request.
        tensors: of the request, of the right form.
    """
    if head["kind"] != "round":
        return int(head["kind"] in ONE_EACH)
    if has_fixed_sums(method):  # all its points are of the same few sums
        return 1
    return evaluated_points(method, tensors)


def explores(method: Method, head: Mapping[str, Any], tensors: State) -> bool:
    """Whether a request explores: it asks at many points, and the answers are of more than a few fixed sums.

    Args:
        method: the site's.
        head: of the request.
        tensors: of the request, of the right form.
    """
    return head["kind"] == "round" and not has_fixed_sums(method) and explored_points(method, tensors) > 0
