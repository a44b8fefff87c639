"""Memory at the peak of a round, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from hierfl.errors import UserError

from ..allocator import keep_memory
from .settings import Setting, prepare


def peak_memory(setting: Setting, device: str = "cpu", chunk: int = 0) -> float:
    """MiB at the peak of a round and an evaluation, in a process of its own; on CUDA of the device's memory."""
    task = json.dumps({**asdict(setting), "device": device, "chunk": chunk, "threads": torch.get_num_threads()})
    command = [sys.executable, "-P", "-m", "hierfl.experiments.bench.memory", task]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"it ended with {done.returncode}"]
        raise UserError(f"the process that measures memory failed: {last[0]}")
    return float(done.stdout)


def _measure_alone(task: str) -> None:
    """The process of its own: prints its peak, MiB."""
    import resource

    setting = json.loads(task)
    device, chunk, threads = (setting.pop(k) for k in ("device", "chunk", "threads"))
    torch.set_num_threads(threads)
    fit = prepare(Setting(**{**setting, "event": tuple(setting["event"])}), device, chunk)
    fit.step()
    fit.evaluate()
    if device.startswith("cuda"):
        print(torch.cuda.max_memory_allocated(device) / 2**20)
        return
    try:
        status = Path("/proc/self/status").read_text()
    except FileNotFoundError:
        unit = 1 if sys.platform == "darwin" else 1024
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20)
        return
    # Not ru_maxrss, which a Linux process inherits from the one that started it.
    print(float(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 2**10)


if __name__ == "__main__":
    keep_memory()
    _measure_alone(sys.argv[1])
