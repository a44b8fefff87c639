"""Processes that share a fit."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path


def forked(ranks: int, run: Callable[..., None], folder: Path, *names: str) -> list[str]:
    """The ranks of one fit, forked from this process, whose imports they have.

    Args:
        ranks: how many.
        run: called in each of them with the folder and the names.
        folder: where traces are written, too.
        names: of cases.

    Returns:
        the trace of each rank that failed, "" of one that did not.
    """
    shared, children = environment(ranks), []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.environ.update({**shared, "RANK": str(rank)})
                run(folder, *names)
                code = 0
            except BaseException:
                (folder / f"trace-{rank}.txt").write_text(traceback.format_exc())
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    traces = [folder / f"trace-{rank}.txt" for rank in range(ranks)]
    return [
        "" if code == 0 else path.read_text() if path.exists() else f"rank {rank} ended with {code}"
        for rank, (code, path) in enumerate(zip(codes, traces, strict=True))
    ]


def environment(ranks: int) -> dict[str, str]:
    """What each rank is told, but which it is."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}


def processes(ranks: int, *command: str) -> list[subprocess.Popen]:
    """The ranks of one fit."""
    shared = environment(ranks)
    return [
        subprocess.Popen(
            [sys.executable, *command], env={**os.environ, **shared, "RANK": str(rank)}, stderr=subprocess.PIPE
        )
        for rank in range(ranks)
    ]
