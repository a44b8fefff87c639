"""A federation over Flower on this machine: a SuperLink with TLS and node keys, a node and a process for each site."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from filelock import FileLock
from support.parties import SERVER, Parties

from hierfl.experiments.federate.flower_control import HOME, environment_of
from hierfl.experiments.federate.guard.ledger import LEDGER, Ledger
from hierfl.experiments.federate.guard.simulated import approve_all
from hierfl.experiments.federate.write_keys import write_node_keys

#: beside this Python: flwr's scripts
BIN = Path(sys.executable).parent
#: seconds that anything may take to begin
PATIENCE = 240.0


def free_port() -> int:
    """One that nobody listens to."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def children(pid: int) -> list[int]:
    """All processes that a process has started, and theirs."""
    started = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                started.append(int(path.parent.name))
        except OSError:
            continue
    return started + [grandchild for child in started for grandchild in children(child)]


class Loopback:
    """All processes of a study; ends them in the end.

    Args:
        study: study.toml, with the cards of all.
        files: every site's own.
        folder: of all logs and homes.
        parties: whose keys they have.
    """

    def __init__(self, study: Path, files: Mapping[str, Path], folder: Path, parties: Parties) -> None:
        self.study, self.files, self.folder, self.parties = study, files, folder, parties
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.port = free_port()
        # Some twenty processes: tests that run beside each other take turns.
        self.turn = FileLock(Path(tempfile.gettempdir()) / "hierfl-loopback.lock")
        self.environment = {**os.environ, **environment_of(study.with_name(HOME)), "OMP_NUM_THREADS": "1"}
        parties.save(folder)
        self.environment["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"  # flwr's scripts start each other

    def __enter__(self) -> Loopback:
        self.turn.acquire()
        try:
            return self._begun()
        except BaseException:
            self.__exit__()
            raise

    def _begun(self) -> Loopback:
        self.study.with_name(HOME).mkdir(exist_ok=True)  # a SuperLink does not make it
        self.hierfl("certificates", self.folder / "tls", "--host", "127.0.0.1")
        tls = self.folder / "tls"
        self.start(
            "superlink", BIN / "flower-superlink", "--host", "127.0.0.1", "--port", self.port,
            "--disable-runtime-dependency-installation", "--enable-supernode-auth", "--ssl-ca-certfile", tls / "ca.crt",
            "--ssl-certfile", tls / "server.pem", "--ssl-keyfile", tls / "server.key",
        )  # fmt: skip
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.running["superlink"].poll() is None:
            with socket.socket() as tried:
                if not tried.connect_ex(("127.0.0.1", self.port)):
                    return self
            time.sleep(0.2)
        raise AssertionError(self.log("superlink"))

    def __exit__(self, *what: object) -> None:
        for name in list(self.running):
            self.kill(name)
        self.turn.release()

    def hierfl(self, *arguments: object) -> str:
        """One of ``hierfl federate``'s commands, to its end; what it prints."""
        command = [sys.executable, "-m", "hierfl", "federate", *map(str, arguments)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, name: str, *command: object) -> None:
        """A process, and a log of its own; each site has an account of its own."""
        environment = {**self.environment, "HIERFL_STATE": str(self.account(name))}
        with open(self.folder / f"{name}.log", "ab") as log:
            self.running[name] = subprocess.Popen(
                [*map(str, command)], stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def account(self, name: str) -> Path:
        """What hierfl remembers of the user of a process."""
        return self.folder / "accounts" / name

    def log(self, name: str) -> str:
        """What a process has said."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def kill(self, name: str) -> None:
        """As a power failure would, with all that it has started."""
        process = self.running.pop(name)
        for pid in (*children(process.pid), process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ProcessLookupError):  # flwr's processes outlive the one that has started them
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def node_again(self, name: str) -> None:
        """A node that was killed, as a supervisor starts it: for a minute the SuperLink takes the old one for alive."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            self.node(name)
            time.sleep(8)
            if self.running[f"node-{name}"].poll() is None:
                return
            self.kill(f"node-{name}")
        raise AssertionError(self.log(f"node-{name}"))

    @property
    def superlink(self) -> list[object]:
        """How the SuperLink is reached."""
        return ["--superlink", f"127.0.0.1:{self.port}", "--ca", self.folder / "tls" / "ca.crt"]

    def join(self, name: str) -> None:
        """A site's node is registered, its people approve, and it begins."""
        public = write_node_keys(self.folder / name)
        own = {name: self.files[name]}
        approve_all(self.study, own, self.folder, lambda who: Ledger(self.account(who) / LEDGER))
        self.hierfl("register", self.study, "--client", name, "--key", public, *self.superlink)
        self.work(name)
        self.node(name)

    def work(self, name: str) -> None:
        """The site's own process."""
        self.start(name, sys.executable, "-m", "hierfl", "federate", "site", self.folder / name)

    def node(self, name: str, key: Path | None = None, ca: Path | None = None, called: str = "") -> None:
        """The site's node of Flower."""
        self.start(
            called or f"node-{name}", BIN / "flower-supernode", "--superlink", f"127.0.0.1:{self.port}",
            "--root-certificates", ca or self.folder / "tls" / "ca.crt", "--host", "127.0.0.1", "--port", free_port(),
            *(() if key == Path() else ("--auth-supernode-private-key", key or self.folder / name / "node.key")),
            "--node-config", f'folder="{self.folder / name}"',
        )  # fmt: skip

    def serve(self, *more: object) -> None:
        """The server, inside the SuperLink; what follows it is a process here."""
        about = ("--home", self.folder / SERVER, "--out", self.folder / "server", *more)
        self.start("server", sys.executable, "-m", "hierfl", "federate", "server", self.study, *about, *self.superlink)

    def wait(self, seconds: float) -> int:
        """Until the server has ended; its exit status."""
        return self.running.pop("server").wait(seconds)

    def server_app(self) -> int:
        """The process in which the server computes."""
        for pid in children(self.running["superlink"].pid):
            try:
                if b"serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
            except OSError:
                continue
        raise AssertionError("no server app runs")
