"""The machine on which something was measured."""

from __future__ import annotations

import platform
from contextlib import ExitStack
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Machine:
    """The machine where it was measured."""

    processor: str
    cores: int
    threads: int
    device: str
    memory_gib: float

    @classmethod
    def this_machine(cls, device: str) -> Machine:
        """This one."""
        import os

        name, memory = platform.processor() or platform.machine(), float("nan")
        with ExitStack() as stack:
            try:
                lines = stack.enter_context(open("/proc/cpuinfo")).read().splitlines()
                name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
                memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
            except OSError:
                pass  # no Linux: the name that Python knows will do
        on = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
        return cls(name, os.cpu_count() or 1, torch.get_num_threads(), on, round(memory, 1))
