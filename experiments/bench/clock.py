"""Seconds of a piece of work, the device's work included."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def seconds(run: Callable[[], object], device: str) -> float:
    """How long it takes, the device's work included."""
    wait_for(device)
    start = time.perf_counter()
    run()
    wait_for(device)
    return time.perf_counter() - start


def wait_for(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
