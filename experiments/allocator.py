"""Memory that the process frees is kept."""

from __future__ import annotations

import os

#: of glibc's mallopt: how many arrays may lie in memory maps of their own; how much may be free before it is returned;
#: how much is taken at a time
MMAP_MAX, TRIM_THRESHOLD, TOP_PAD = -4, -1, -2


def keep_memory() -> bool:
    """Has the process keep the memory that it frees, instead of handing it back to the system; whether it could.

    Every step of a large network makes gradients of tens of megabytes, which glibc takes from the system again each
    time: what is lost in page faults is a fifth of a round of pFedV's network. Nothing happens elsewhere than with
    glibc, or where the environment says how it is to allocate (``MALLOC_...``, ``GLIBC_TUNABLES``).
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
    return all([mallopt(MMAP_MAX, 0), mallopt(TRIM_THRESHOLD, 2**31 - 1), mallopt(TOP_PAD, 2**26)])
