"""How much of a round is the host's: Python and dispatch, beside what torch's operators or the device compute."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.profiler import ProfilerActivity, profile

from hierfl.inference.run.fit import Fit

from .clock import wait_for

#: where the host does nothing but wait for the device
WAITING = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


def host_and_device(fit: Fit, device: str, round_seconds: float) -> dict[str, Any]:
    """Seconds of a round by who spends them.

    On a CPU the device's are those inside operators, whose own time a profiled round tells; the host's are what is left
    of a round that was not profiled. On a GPU the device's are those of its kernels and copies, and the host's those in
    which it did not wait for them: then the two overlap.

    Args:
        fit: takes one more round.
        device: where.
        round_seconds: of a round without a profiler.
    """
    cuda = device.startswith("cuda")
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else [])
    with _log_of_profiler_hidden(), profile(activities=activities) as profiled:
        fit.step()
        wait_for(device)
    events = profiled.key_averages()
    if cuda:
        computed = sum(e.self_device_time_total for e in events)
        beside = sum(e.self_cpu_time_total for e in events if e.key in WAITING)
    else:
        computed = beside = sum(e.self_cpu_time_total for e in events if e.key.startswith("aten::"))
    return {
        "host_seconds": max(0.0, round_seconds - beside / 1e6),
        "device_seconds": computed / 1e6,
        "operators": sum(e.count for e in events if e.key.startswith("aten::")),
    }


@contextmanager
def _log_of_profiler_hidden() -> Iterator[None]:
    """Its C++ library logs to the process's standard error, also that there is no GPU."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
