"""Whether something reads the process's random numbers, which no client keys."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from hierfl.errors import UserError


@contextmanager
def random_numbers_kept(device: torch.device) -> Iterator[None]:
    """Leaves the generators of torch, NumPy and Python as they were, and the device's, if it is another."""
    before = _states(device)
    try:
        yield
    finally:
        torch.random.set_rng_state(before["torch"])
        if "cuda" in before:
            torch.cuda.set_rng_state(before["cuda"], device)
        np.random.set_state(before["numpy"])  # noqa: NPY002
        random.setstate(before["random"])


@contextmanager
def no_random_numbers(device: torch.device) -> Iterator[None]:
    """Refuses what draws from one of these generators.

    Args:
        device: whose generator is looked at beside the CPU's.

    Raises:
        UserError: if one of them has moved.
    """
    before = _states(device)
    yield
    moved = [name for name, state in _states(device).items() if not _same(state, before[name])]
    if moved:
        raise UserError(
            f"the model or guide draws random numbers outside of its sites (from {moved[0]}'s generator), which would "
            "differ between runs and chunks: draw in a sample site of the guide, and give dropout to the network"
        )


def _states(device: torch.device) -> dict[str, Any]:
    states = {"torch": torch.random.get_rng_state(), "numpy": np.random.get_state(), "random": random.getstate()}  # noqa: NPY002
    return states | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def _same(first: Any, two: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return torch.equal(first, two)
    if isinstance(first[1], np.ndarray):
        return first[2] == two[2] and bool((first[1] == two[1]).all())
    return bool(first == two)
