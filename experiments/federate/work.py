"""A site at work: it answers until the study has ended for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from hierfl.file_lock import locked
from hierfl.files import shown
from hierfl.inference.engines.remote.files import POLL, RequestFiles
from hierfl.plain_folder import PlainFolder
from hierfl.troubles import Troubles

from .local_socket import answer_couriers, listening

log = logging.getLogger("hierfl")
#: of a site's position in the exchange folder: one process at a time answers there
LOCK = ".answering.lock"
#: seconds for which a site that is begun again after its study has ended still answers
FAREWELL = 3.0


class Answering(Protocol):
    """A site: what answers requests.

    Attributes:
        ended: whether the study has, for this site.
    """

    @property
    def ended(self) -> bool: ...

    def answer(self, request: bytes) -> bytes:
        """What it answers.

        Raises:
            OSError: where its disk cannot hold what has to be kept: it is asked again.
        """
        ...


def answer_by_files(
    site: Answering, exchange: Path, client: str, unknown: Callable[[Path], str] = lambda exchange: ""
) -> None:
    """Answers what lies in a shared folder.

    Args:
        site: what answers.
        exchange: the exchange folder.
        client: the site's name.
        unknown: the name of an earlier reply in it of which this site knows nothing; empty for none.

    Raises:
        UserError: where another process answers there under this name.
    """
    site_folder = PlainFolder(exchange, client)
    requests, waits = RequestFiles(exchange, client, site.answer), False
    # A mount may be away, and a server may not have begun.
    while not site.ended and not _is_reachable_folder(site_folder.path):
        if not waits:
            lacking = site_folder.path if _is_reachable_folder(exchange) else exchange
            log.warning("there is no folder %s yet: waiting for the server, or for the mount", shown(lacking))
        waits = True
        time.sleep(POLL)
    if not _is_reachable_folder(site_folder.path):
        return
    with alone(site_folder, LOCK, f"another process answers as {client} in {shown(site_folder.path)}: end one of them"):
        with Troubles("earlier replies in it were not looked at").tried(f"the exchange folder of {client}"):
            if name := unknown(exchange):
                log.warning(
                    "%s is a reply that this site has signed, and neither its home nor this account's ledger has a "
                    "line about it: budgets count from less. Take both from a backup", shown(name),
                )  # fmt: skip
        # A server that was killed as it ended may ask once more what this site has answered.
        end = time.monotonic() + FAREWELL if site.ended else 0.0
        while not site.ended or time.monotonic() < end:
            if not requests.answered():
                time.sleep(POLL)


def _is_reachable_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # of a mount that is away, or not for this account
        return False


@contextmanager
def alone(folder: PlainFolder, lock: str, words: str) -> Iterator[None]:
    """Excludes a second process from a part of the exchange folder.

    Args:
        folder: that part.
        lock: name of the lock file in it.
        words: what is said where another process is there.

    Raises:
        Busy: where there is one.
    """
    with ExitStack() as stack:
        try:
            with folder.opened():  # no link
                pass
            stack.enter_context(locked(folder.path / lock, words))
        except (OSError, NotImplementedError) as error:
            log.warning("no lock can be had in %s (%s): see that one process works there", shown(folder.path), error)
        yield


def answer_by_flower(site: Answering, folder: Path, say: Callable[[str], None]) -> None:
    """Answers what a node of Flower on this machine brings."""
    with listening(folder) as listener:
        say("without --exchange DIR it answers Flower's node on this machine, which is started by:")
        say(f"  {node_command(folder)}")
        answer_couriers(listener, site.answer, lambda: site.ended)


def node_command(folder: Path) -> str:
    """How the node of Flower of a site is started: nodes on one machine each need a port of their own."""
    import shlex

    key = folder / "node.key"
    options = f" --auth-supernode-private-key {shlex.quote(str(key.resolve()))}" if key.is_file() else ""
    node_config = shlex.quote(f'folder="{folder.resolve()}"')
    return (
        f"flower-supernode --superlink HOST:9092 --root-certificates ca.crt{options} --host 127.0.0.1 "
        f"--port {free_port()} --node-config {node_config}"
    )


def free_port() -> int:
    """A port of this machine that no one listens to."""
    import socket

    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


def closing_words(closed: str, folder: Path) -> str:
    """What a site's process says as it ends.

    Args:
        closed: why the study has ended without this site; empty where it took part to the end.
        folder: the site's own.
    """
    if closed:
        return f"the study has ended without this site ({closed}): it has nothing to predict with"
    return f"the study has ended: hierfl report {folder}, hierfl predict {folder} --data FILE"
