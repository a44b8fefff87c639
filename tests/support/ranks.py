"""Processes that share a fit."""

from __future__ import annotations

import os
import socket
import subprocess
import sys


def processes(ranks: int, *command: str) -> list[subprocess.Popen]:
    """The ranks of one fit."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, *command], env={**os.environ, **shared, "RANK": str(rank)}, stderr=subprocess.PIPE
        )
        for rank in range(ranks)
    ]
