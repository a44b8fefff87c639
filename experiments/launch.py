"""Processes of the distributed engine on this machine: started together, ended together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING

from hierfl.errors import RankLost, UserError, unknown

if TYPE_CHECKING:
    from hierfl.inference.run.fit import EngineMaker

ENGINES = ("plate", "distributed")
#: seconds that the others have to end by themselves once one has
GRACE = 3.0


def launches(engine: str, ranks: int) -> bool:
    """Whether this command is to start others that do the work.

    Raises:
        UserError: for options that do not go together.
    """
    from hierfl.inference.engines.ranks import started

    if engine and engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if ranks < 0:
        raise UserError(f"--ranks must be at least 1, not {ranks}")
    if ranks and engine != "distributed":
        raise UserError("--ranks is for --engine distributed")
    if ranks and started() and ranks != int(os.environ["WORLD_SIZE"]):
        raise UserError(f"there are {os.environ['WORLD_SIZE']} ranks, as torchrun has started them, not {ranks}")
    return engine == "distributed" and not started()


def engine_of(engine: str) -> EngineMaker:
    """The engine that a command asks for: where torchrun has started it the distributed one."""
    from hierfl.inference.engines.plate import PlateEngine
    from hierfl.inference.engines.ranks import started

    if not started():
        return PlateEngine
    if engine == "plate":
        raise UserError("torchrun starts the distributed engine; start one process for --engine plate")
    from hierfl.inference.engines.distributed import DistributedEngine

    return DistributedEngine


def launch(ranks: int, arguments: Sequence[str]) -> int:
    """Runs ``hierfl`` with these arguments in so many processes, and ends all of them where one ends badly.

    Args:
        ranks: how many; 0 for one on each GPU, or two.
        arguments: of the command line.

    Returns:
        The exit status: 0 where all have ended well.
    """
    import torch

    ranks = ranks or max(2, torch.cuda.device_count())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks)), **os.environ,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks),
    }  # fmt: skip
    for name in ("SIGTERM", "SIGHUP"):  # from a batch system, say: nothing that was started here goes on alone
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _exit)
    processes: list[subprocess.Popen[bytes]] = []
    with ExitStack() as files:
        error_files = [files.enter_context(tempfile.TemporaryFile()) for _ in range(ranks)]
        try:
            for rank in range(ranks):
                command = [sys.executable, "-P", "-m", "hierfl", *arguments]
                own = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                processes.append(subprocess.Popen(command, env=own, stderr=error_files[rank] if rank else None))
            return _awaited(processes, error_files)
        except KeyboardInterrupt:  # they have it, too, and the first one says how to go on
            _wait(processes)
            raise
        finally:
            _end(processes)


def _exit(number: int, frame: object) -> None:
    sys.exit(128 + number)


def _awaited(processes: Sequence[subprocess.Popen[bytes]], error_files: Sequence[IO[bytes]]) -> int:
    """Waits until all have ended well, or one has not; its exit status."""
    while not any(process.poll() for process in processes):
        if all(process.poll() == 0 for process in processes):
            return 0
        time.sleep(0.1)
    _wait(processes)
    # a rank that was killed says nothing; one that has lost another is not why
    ended = {rank: process.poll() or 0 for rank, process in enumerate(processes)}
    killed = [rank for rank, code in ended.items() if code < 0]
    failed = [rank for rank, code in ended.items() if code not in (0, RankLost.status)]
    first = (killed or failed or [0])[0]
    if first or killed:  # the first rank's own words are on the screen
        print(f"error: rank {first} {_reason(ended[first], error_files[first])}", file=sys.stderr)
    return 1 if killed else ended[first] or 1


def _reason(code: int, error_file: IO[bytes]) -> str:
    """Why a process has ended."""
    if code < 0:
        return f"was killed ({signal.Signals(-code).name}); go on with: hierfl run --resume DIR --engine distributed"
    error_file.seek(0)
    lines = error_file.read().decode(errors="replace").strip().splitlines() or [f"exit status {code}"]
    return f"has failed: {lines[-1].removeprefix('error: ')}"


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Gives them some time to end."""
    until = time.monotonic() + GRACE
    while time.monotonic() < until and any(process.poll() is None for process in processes):
        time.sleep(0.1)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ends those that still run."""
    for process in processes:
        process.terminate()
    _wait(processes)
    for process in processes:
        process.kill()
        process.wait()
