"""How threads of the arithmetic wait for each other."""

from __future__ import annotations

import os
import sys

#: turns of an empty loop before a thread that waits goes to sleep: some 20 to 50 microseconds, about what waking costs
TURNS = 1000
#: variables by which the environment says how threads wait
SAID = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")


def wait_briefly() -> bool:
    """Has threads that wait for another one sleep soon; whether it could.

    torch cuts large arrays among threads, which wait for the last of them. The runtime of gcc has them run an empty
    loop of 300,000 turns first. On a machine whose cores have other work the loop takes the core from the very thread
    that is waited for: a multiplication of 250,000 numbers took 40 ms where one thread takes 0.4 ms. Numbers are the
    same to the bit. The runtime reads its environment once, when torch is loaded: nothing happens after that, nor
    where the environment says how threads wait.
    """
    if "torch" in sys.modules or any(name in os.environ for name in SAID):
        return False
    os.environ["GOMP_SPINCOUNT"] = str(TURNS)
    return True
