"""Broadcast values that no honest server sends."""

from __future__ import annotations

from hierfl.inference.engines.remote.site import Site
from hierfl.inference.state import State

from .answers import Slot


def broadcast_problem(site: Site, slot: Slot, tensors: State) -> str:
    """What is wrong with a request's tensors, in words that hold none of their values; empty where nothing is."""
    if any(value.is_floating_point() and not bool(value.isfinite().all()) for value in tensors.values()):
        return "its values are not finite"
    return ""
