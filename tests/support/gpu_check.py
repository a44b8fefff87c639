"""The GPU in one command: starts each part of the check in a process of its own, within its time, and writes one json.

    bash tests/support/gpu_check.sh [--wheels DIR] [--device cuda] [--minutes 5] [--out gpu.json] [--small]

which installs what is needed into a temporary folder and calls this file. What the parts do is in gpu_parts.py. A part
has its share of the minutes that are left when it begins, and is stopped at its end: its state is "out of time", and
what it has found by then is kept. A part that fails, or whose process dies, does not stop those after it. The json is
written before and after every part. The exit status is 0 where all parts have passed (on a CPU all that need no CUDA),
1 where not, 2 for bad input.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from hierfl.errors import UserError
from hierfl.files import check_writable, user_path, write_whole

#: seconds of five minutes that each part has
SHARES = {"environment": 40, "cpu-against-cuda": 60, "tests": 75, "many": 45, "fashion-mnist": 35, "options": 45}
PASSED, NEEDS, LATE, FAILED = "passed", "needs cuda", "out of time", "failed"
#: of a part that has not run yet, that runs, and in which the whole check was told to stop
NOT_REACHED, RUNS, STOPPED = "not reached", "runs", "stopped"
#: characters of what a part's process has said that are kept where it has not passed
SAID = 3000


class Arguments(argparse.ArgumentParser):
    """Says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        """See :class:`argparse.ArgumentParser`.

        Raises:
            UserError: always.
        """
        raise UserError(message)


def arguments() -> argparse.Namespace:
    """What was asked for.

    Raises:
        UserError: for what cannot be.
    """
    parser = Arguments(prog="gpu_check.sh", description="Asks a GPU all that hierfl wants to know of it.")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, ...; cpu for the dry run")
    parser.add_argument("--minutes", type=float, default=5.0, help="after which all parts have ended")
    parser.add_argument("--out", type=user_path, default=Path("gpu.json"), help="the json; an old one is replaced")
    parser.add_argument("--small", action="store_true", help="tiny sizes, for the dry run")
    parser.add_argument("--begun", type=float, default=time.time(), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if not 0 < asked.minutes < math.inf:
        raise UserError(f"--minutes must be more than 0, not {asked.minutes:g}")
    if asked.device != "cpu" and asked.device.partition(":")[0] != "cuda":
        raise UserError(f"--device must be cuda, cuda:N or cpu, not {asked.device!r}")
    asked.out = asked.out.absolute()
    try:
        check_writable(asked.out)
    except OSError as error:
        raise UserError(f"{asked.out} cannot be written: {error.strerror}") from error
    return asked


class Check:
    """All parts, and the json.

    Args:
        asked: on the command line.
        folder: a temporary one.
    """

    def __init__(self, asked: argparse.Namespace, folder: Path) -> None:
        self.asked, self.folder = asked, folder
        #: Installing the wheels counts.
        self.start = time.monotonic() - max(0.0, time.time() - asked.begun)
        self.end = self.start + 60 * asked.minutes
        self.parts: dict[str, Any] = {name: {"state": NOT_REACHED} for name in SHARES}
        self.record: dict[str, Any] = {
            "what": "hierfl's check of a GPU, tests/support/gpu_check.sh",
            "begun": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(asked.begun)),
            "asked": {"device": asked.device, "minutes": asked.minutes, "small": asked.small},
            "state": RUNS, "seconds": 0.0, "hardware": {}, "versions": {}, "parts": self.parts,
        }  # fmt: skip

    def write(self) -> None:
        """The json, whole."""
        self.record["seconds"] = round(time.monotonic() - self.start, 1)
        write_whole(self.asked.out, (json.dumps(self.record, indent=1) + "\n").encode())

    def run(self) -> bool:
        """All parts, one after the other; whether all is well."""
        left = sum(SHARES.values())
        for name, share in SHARES.items():
            limit = max(0.0, self.end - time.monotonic()) * share / left
            left -= share
            self.parts[name] = {"state": RUNS, "limit_seconds": round(limit, 1)}
            self.write()
            try:
                self.parts[name] |= self.part(name, limit)
            except BaseException:
                self.parts[name]["state"] = self.record["state"] = STOPPED
                self.write()
                raise
            figures = self.parts[name].get("figures", {})
            if name == "environment":  # what everything depends on is where it is looked for
                self.record |= {key: figures.pop(key) for key in ("hardware", "versions") if key in figures}
            print(in_short(name, self.parts[name]), flush=True)
            self.write()
        states = {part["state"] for part in self.parts.values()}
        well = states <= ({PASSED, NEEDS} if self.asked.device == "cpu" else {PASSED})
        self.record["state"] = FAILED if not well else PASSED if states == {PASSED} else f"{PASSED}, but {NEEDS}"
        self.write()
        return well

    def part(self, name: str, limit: float) -> dict[str, Any]:
        """What one part has come to in so many seconds."""
        kept, log = self.folder / f"{name}.json", self.folder / f"{name}.log"
        task = {"part": name, "device": self.asked.device, "small": self.asked.small, "record": str(kept)}
        command = [sys.executable, str(Path(__file__).with_name("gpu_parts.py")), json.dumps(task)]
        begin, before = time.monotonic(), children_cpu()
        with open(log, "wb") as output:
            # A group of its own, so that what it starts is stopped with it.
            process = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
            try:
                code = ended(process, limit)
            finally:
                stop_group(process)
        result = json.loads(kept.read_bytes()) if kept.exists() else {}
        result["seconds"] = round(time.monotonic() - begin, 1)
        result["cpu_seconds"] = round(children_cpu() - before, 1)
        if code is None:
            result |= {"state": LATE, "error": f"it had not ended after its {limit:.0f} seconds, and was stopped"}
        elif code or "state" not in result:
            how = f"it was killed by {signal.Signals(-code).name}" if code < 0 else f"it ended with status {code}"
            result |= {"state": FAILED, "error": f"the part's process is lost: {how}"}
        if result["state"] not in (PASSED, NEEDS):
            result["said"] = log.read_text(errors="replace")[-SAID:]
        return result


def ended(process: subprocess.Popen[bytes], limit: float) -> int | None:
    """A process's exit status, or None where it has none after so many seconds."""
    until = time.monotonic() + limit
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    return process.poll()


def children_cpu() -> float:
    """CPU seconds of the processes that have ended here, and of those that they have waited for."""
    times = os.times()
    return times.children_user + times.children_system


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all that it has started."""
    with contextlib.suppress(ProcessLookupError):  # all have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def in_short(name: str, part: Mapping[str, Any]) -> str:
    """One line on a part, and those that it has written for whoever waits."""
    lines = [f"{name}: {part['state']}, {part['seconds']:.0f} of {part['limit_seconds']:.0f} s"]
    if part.get("error"):
        lines.append(f"  {part['error'].splitlines()[0]}")
    lines += [f"  {line}" for line in part.get("figures", {}).get("in_short", [])]
    return "\n".join(lines)


def _stopped(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


def main() -> int:
    """Runs the check; its exit status."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _stopped)
    asked = arguments()
    with tempfile.TemporaryDirectory() as folder:
        check = Check(asked, Path(folder))
        well = check.run()
    print(f"{check.record['state']}, {check.record['seconds']:.0f} s; everything is in {asked.out}")
    return 0 if well else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.status)
