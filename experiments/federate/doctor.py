"""What can go wrong at a place before a study begins: folders, clocks, keys, versions, ports."""

from __future__ import annotations

import os
import platform
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from hierfl.errors import UserError
from hierfl.files import shown, sync_folder
from hierfl.plurals import counted

Level = Literal["ok", "warn", "fail"]
#: bytes that have to be free: a study's own files, and a few more
LEAST_FREE, ENOUGH_FREE = 50e6, 1e9
#: seconds by which a folder's clock may differ
CLOCK_OK, CLOCK_FAR = 5.0, 300.0
#: packages whose versions matter, and whether a study can do without
PACKAGES = {"hierfl": True, "torch": True, "pyro-ppl": True, "cryptography": True, "flwr": False}
#: files that only their owner may read
SECRETS = ("site.key", "node.key")
#: where Flower's SuperLink and SuperNode listen if nothing else is said
FLOWER_PORTS = {9092: "the SuperLink's", 9094: "a SuperNode's"}
#: a free name of a file that is written and taken away again
_TRIAL = ".hierfl-doctor-"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        level: "ok", "warn" or "fail".
        what: was looked at.
        words: what was seen, and what to do.
    """

    level: Level
    what: str
    words: str

    @property
    def line(self) -> str:
        """The finding as one line."""
        return f"{self.level:<4}  {shown(self.what)}: {shown(self.words)}"


def examine(
    home: Path | None = None, exchange: Path | None = None, superlink: str = "", study: Path | None = None, *,
    trust_code: bool = False,
) -> Iterator[Finding]:  # fmt: skip
    """Looks at all that is named, and at the versions that are installed.

    Args:
        home: a site's or the server's own folder.
        exchange: the shared folder.
        superlink: HOST:PORT of Flower's SuperLink.
        study: study.toml.
        trust_code: whether the study's own method file may run.
    """
    yield from versions()
    if home is not None:
        yield from folder(home, "home", private=True)
        yield from keys(home)
    if exchange is not None:
        yield from folder(exchange, "exchange", private=False)
        yield from clock(exchange) if exchange.is_dir() else ()
    if superlink:
        yield reachable(superlink)
        yield from ports()
    if study is not None:
        yield agreed(study, trust_code)


def versions() -> Iterator[Finding]:
    """The versions of Python, and of the packages."""
    yield Finding("ok", "python", platform.python_version())
    for name, needed in PACKAGES.items():
        try:
            yield Finding("ok", name, version(name))
        except PackageNotFoundError:
            if needed:
                yield Finding("fail", name, f"is not installed: pip install {name}")
            else:
                yield Finding(
                    "ok", name, "is not installed, and only Flower as the connection needs it: hierfl[flower]"
                )


def _permissions(path: Path) -> int:
    """Permission bits; of Windows, which has others, those of a file that no one else may read."""
    return stat.S_IMODE(path.stat().st_mode) if os.name == "posix" else 0o600


def folder(path: Path, what: str, *, private: bool) -> Iterator[Finding]:
    """Whether a folder is there, whose it is, and whether files can be written, brought to the disk and renamed."""
    if not path.is_dir():
        remedy = "hierfl federate keys makes it" if private else "make it, or mount it, and look at its path"
        yield Finding("fail", what, f"{path} is no folder: {remedy}")
        return
    mode = _permissions(path)
    if private and mode & 0o077:
        yield Finding("warn", f"{what} mode", f"{mode:04o}: others on this machine may look in: chmod 700 {path}")
    elif not private and mode & 0o002 and not mode & stat.S_ISVTX:
        yield Finding(
            "warn", f"{what} mode", f"{mode:04o}: everyone may replace files: let the sites' accounts alone in"
        )
    else:
        yield Finding("ok", f"{what} mode", f"{mode:04o}")
    yield _tried(
        f"{what} writing", lambda: _write_and_rename(path), f"in {path}: mount it writable, or look at its owner"
    )
    free = shutil.disk_usage(path).free
    level: Level = "ok" if free >= ENOUGH_FREE else "warn" if free >= LEAST_FREE else "fail"
    remedy = "" if level == "ok" else ": make room on this disk"
    yield Finding(level, f"{what} disk", f"{free / 1e9:.2f} GB are free{remedy}")
    for part in sorted(path.iterdir()) if not private else ():
        if part.is_symlink():
            yield Finding("fail", what, f"{part} is a link, which is not followed: put a folder there")


def _write_and_rename(path: Path) -> str:
    first, other = (path / f"{_TRIAL}{secrets.token_hex(8)}" for _ in range(2))
    try:
        with open(first, "xb") as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
        os.replace(first, other)
        sync_folder(path)
        if other.stat().st_size != 4096:
            raise OSError("a file that was written has another size")
    finally:
        for trial in (first, other):
            with suppress(OSError):
                trial.unlink()
    return "a file can be written, brought to the disk and renamed"


def _tried(what: str, run: Callable[[], str], remedy: str) -> Finding:
    try:
        return Finding("ok", what, run())
    except OSError as error:
        return Finding("fail", what, f"{error.strerror or error} {remedy}")


def clock(path: Path) -> Iterator[Finding]:
    """This machine's clock against the times of files in a shared folder: the file server's clock is in them."""
    trial = path / f"{_TRIAL}{secrets.token_hex(8)}"
    try:
        trial.write_bytes(b"")
        off = trial.stat().st_mtime - time.time()
        newest = max(_times(path.glob("*/re*/*")), default=0.0)
    except OSError as error:
        yield Finding("warn", "clock", f"cannot be compared: {error.strerror or error}")
        return
    finally:
        with suppress(OSError):
            trial.unlink()
    remedy = "rounds are counted, not timed, and yet logs and approvals say times: set the clock (NTP)"
    if abs(off) > CLOCK_OK:
        yield Finding("warn" if abs(off) < CLOCK_FAR else "fail", "clock", f"{off:+.0f} s against {path}: {remedy}")
    elif newest > time.time() + CLOCK_FAR:
        ahead = newest - time.time()
        yield Finding("warn", "clock", f"a file in {path} is {ahead:.0f} s ahead of this machine's clock: {remedy}")
    else:
        yield Finding("ok", "clock", f"{off:+.1f} s against {path}")


def _times(paths: Iterable[Path]) -> Iterator[float]:
    """When files were changed; of those that are gone by now, nothing."""
    for path in paths:
        with suppress(OSError):
            yield path.stat(follow_symlinks=False).st_mtime


def keys(home: Path) -> Iterator[Finding]:
    """Whether there are keys, and whether they are their owner's alone."""
    if not (home / SECRETS[0]).is_file():
        yield Finding("fail", "keys", f"{home} has no {SECRETS[0]}: hierfl federate keys {home} --name NAME")
    of_masks = (path.relative_to(home) for path in sorted(home.glob("studies/*/masks/*")) if path.is_file())
    for name in map(str, (*SECRETS, *of_masks)):
        path = home / name
        if path.is_symlink():
            yield Finding("fail", name, f"{path} is a link: put the file itself there")
        elif path.is_file():
            mode = _permissions(path)
            if mode & 0o077:
                yield Finding("fail", name, f"{mode:04o}: others may read it: chmod 600 {path}, and make new keys")
            else:
                yield Finding("ok", name, f"{mode:04o}")


def reachable(superlink: str) -> Finding:
    """Whether anything listens at HOST:PORT."""
    host, _, port = superlink.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        return Finding("fail", "SuperLink", f"{superlink!r} is no HOST:PORT, such as federation.example.org:9092")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=5):
            return Finding("ok", "SuperLink", f"something listens at {superlink}")
    except OSError as error:
        return Finding(
            "fail", "SuperLink", f"nothing answers at {superlink} ({error.strerror or error}): start flower-superlink, "
            "look at the port and the firewall"
        )  # fmt: skip


def ports() -> Iterator[Finding]:
    """Whether the ports that Flower takes by default are free on this machine."""
    for port, whose in FLOWER_PORTS.items():
        with socket.socket() as tried:
            tried.settimeout(1)
            taken = tried.connect_ex(("127.0.0.1", port)) == 0
        if taken and port == 9094:
            words = "is taken: a second SuperNode here needs a port of its own (flower-supernode --port PORT)"
            yield Finding("warn", f"port {port}", words)
        else:
            yield Finding("ok", f"port {port}", f"{whose}: {'something listens here' if taken else 'free'}")


def agreed(path: Path, trust_code: bool) -> Finding:
    """Whether study.toml can be read here, with the version of its method that was agreed on."""
    from .masks import summed_over
    from .study import Study

    try:
        study = Study.read(path, trust_code=trust_code)
    except UserError as error:
        return Finding("fail", "study", str(error))
    words = f"{study.name}: {study.loaded.name} as agreed on, {counted(len(study.clients), 'site')}"
    if over := summed_over(study):
        words += f", masked: the server gets sums over {over} sites"
    return Finding("ok", "study", words)
