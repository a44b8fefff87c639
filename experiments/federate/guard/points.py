"""How many points a question evaluates, and how many a study may."""

from __future__ import annotations

from collections.abc import Collection

from hierfl.inference.method.base import Method
from hierfl.inference.state import State

from ..study import Study
from .answers import Slot
from .policy import Policy

#: kinds of questions that evaluate the data once
ONE = ("scores", "sums", "calibration")


def points_of(slot: Slot, method: Method, tensors: State) -> int:
    """Points at which a question evaluates the data.

    Args:
        slot: what is asked.
        method: the study's.
        tensors: as broadcast.
    """
    return 1 if slot.kind in (*ONE, "round") else 0


def budget_of(study: Study, policy: Policy, allowed: Collection[str]) -> int:
    """Points that may be evaluated on the data of a study, in all studies together."""
    family = study.table["data"].get("family", "")
    return policy.budget.get(study.loaded.name, policy.budget.get(family, 100))
