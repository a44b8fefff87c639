"""How threads of the arithmetic wait for each other."""

from __future__ import annotations

import os
import sys

#: turns of an empty loop before a thread that waits goes to sleep, where other programs keep the cores busy: some 20 to
#: 50 microseconds, about what waking costs
TURNS_BUSY = 1_000
#: the same on a machine with cores to spare, where sleeping costs more than it gives
TURNS = 60_000
#: variables by which the environment says how threads wait
WAIT_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")


def turns(load: float, cores: int) -> int:
    """How long a thread waits before it sleeps.

    Args:
        load: programs that ran or wanted to, the mean of the last minute.
        cores: of the machine.
    """
    return TURNS_BUSY if load > cores else TURNS


def wait_briefly() -> bool:
    """Has threads that wait for another one sleep soon; whether it could.

    torch cuts large arrays among threads, which wait for the last of them. The runtime of gcc has them run an empty
    loop of 300,000 turns first. On a machine whose cores have other work the loop takes the core from the very thread
    that is waited for. On two cores a round of pFedVEM on the digits took 8.4 s beside six busy programs, and with
    1,000 turns 1.0 s. On the same cores with nothing else it took 0.17 s, with 1,000 turns 0.38 s, and with 60,000
    turns 0.17 s. So the number depends on the load at the import of hierfl. Results are the same to the bit. The
    runtime reads its environment once, when torch is loaded: nothing happens after that, nor where the environment says
    how threads wait.
    """
    if "torch" in sys.modules or any(name in os.environ for name in WAIT_VARIABLES):
        return False
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0  # Windows has none
    os.environ["GOMP_SPINCOUNT"] = str(turns(load, os.cpu_count() or 1))
    return True
