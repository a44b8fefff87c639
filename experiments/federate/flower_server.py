"""A study's server that runs inside a SuperLink, followed from the outside."""

from __future__ import annotations

import os
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hierfl.errors import UserError
from hierfl.inference.engines.remote.keys import Identity

from ..run_folder.summary import read_summary
from .contributions import STATUS, read_status
from .flower_control import Control
from .nodes import NODES, read_nodes
from .roster_keys import check_server
from .server import DONE, check_folder
from .study import Study

#: seconds between two looks at status.json, and at what Flower says of the run
POLL, POLL_FLOWER = 0.5, 15.0
#: flwr's words for a run that goes on
RUNNING = ("pending", "starting", "running")


def serve_in_superlink(
    study: Study, out: Path, control: Control, home: Path, *, resume: bool, restart: bool, deadline: float,
    trust_code: bool, say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:  # fmt: skip
    """Starts a study's server in the SuperLink of this machine, and waits until it has ended; its summary.

    Args:
        study: what was agreed on.
        out: the server's own folder.
        control: of the SuperLink.
        home: folder of the server's keys.
        resume, restart, deadline: as for :func:`~hierfl.experiments.federate.server.serve`.
        trust_code: whether the method's own file is run.
        say: receives a line for each step.

    Raises:
        UserError: where it cannot begin, or has failed.
    """
    check_folder(out, resume)
    check_server(study.keys, study.clients, Identity.load(home), study.path)
    if lacking := [name for name in study.clients if name not in read_nodes(study.path)]:
        say(f"not registered yet: {', '.join(lacking)}" if (study.path.with_name(NODES)).is_file() else
            "no node is registered: each is believed to be the site that it says")  # fmt: skip
    before = (out / STATUS).stat().st_mtime_ns if (out / STATUS).is_file() else 0
    run = control.start(out, home, resume=resume, restart=restart, deadline=deadline, trust_code=trust_code)
    say(f"run {run} of Flower; hierfl federate status {out} says where it is")
    say(f"Ctrl-C, or SIGTERM of process {os.getpid()}, ends the server, too; by hand: {stop_words(control, run)}")
    try:
        with terminating():
            return _followed(out, before, control, run, say)
    except (KeyboardInterrupt, Terminated) as error:
        control.stop(run)
        say(f"the server has been ended, and may go on: --resume ({type(error).__name__})")
        raise


class Terminated(UserError):
    """This process was sent SIGTERM."""

    status = 143


@contextmanager
def terminating() -> Iterator[None]:
    """Raises :class:`Terminated` where this process is sent SIGTERM; only the main thread hears signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise Terminated("ended by SIGTERM; the server was ended, too: go on with --resume")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def stop_words(control: Control, run: str) -> str:
    """How a run is ended by hand."""
    return f"FLWR_HOME={shlex.quote(str(control.home))} flwr stop {run} hierfl"


def _followed(out: Path, before: int, control: Control, run: str, say: Callable[[str], None]) -> dict[str, Any]:
    looked, shown, gone = time.monotonic(), -1, ""
    while True:
        time.sleep(POLL)
        latest = read_status(out) if (out / STATUS).is_file() and (out / STATUS).stat().st_mtime_ns > before else None
        if latest and latest["round"] != shown:
            shown = latest["round"]
            say(f"round {shown} of {latest['rounds']}")
        if latest and latest["ended"] is not None:
            if latest["ended"] == DONE:
                return read_summary(out)
            raise UserError(latest["ended"])
        if gone:
            raise UserError(f"the server has ended ({gone}; see the SuperLink's log): go on with --resume")
        if time.monotonic() - looked > POLL_FLOWER:
            looked, status = time.monotonic(), control.status(run)
            # What it has written since then is read once more.
            gone = "" if status.startswith(RUNNING) else status
