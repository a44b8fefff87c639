"""A local socket between a site's own process and a courier, which only this user can reach: it carries bytes.

The site's process holds data and values, and loads what it needs once. Couriers come and go with each message; they
import nothing heavy and see bytes alone. Nothing is unpickled: only byte strings are sent and received.
"""

from __future__ import annotations

import json
import logging
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from hierfl.errors import UserError
from hierfl.files import make_folder, write_whole
from hierfl.troubles import Troubles

log = logging.getLogger("hierfl")
#: of a site's folder: where its process listens, and the key
ADDRESS = "courier.json"
#: bytes of a message
LARGEST = 2**31 - 1
#: seconds in which a courier has to have sent its message
PATIENCE = 60.0


@contextmanager
def listening(folder: Path) -> Iterator[Listener]:
    """A socket, whose address and key are in the site's folder while it is there."""
    key = secrets.token_bytes(32)
    # The path of a socket may have some hundred characters: a folder's own may be longer.
    scratch = Path(tempfile.mkdtemp(prefix="hierfl-"))
    unix = hasattr(socket, "AF_UNIX")
    listener = (
        Listener(str(scratch / "site"), "AF_UNIX", authkey=key) if unix else Listener(("127.0.0.1", 0), authkey=key)
    )
    try:
        make_folder(folder)
        address = {"address": listener.address, "key": key.hex()}
        write_whole(folder / ADDRESS, json.dumps(address).encode(), mode=0o600)
        yield listener
    finally:
        (folder / ADDRESS).unlink(missing_ok=True)
        listener.close()
        shutil.rmtree(scratch, ignore_errors=True)


def answer_couriers(listener: Listener, answer: Callable[[bytes], bytes], ended: Callable[[], bool]) -> None:
    """Answers one courier after the other, until the study has ended.

    Whatever a courier does, the next one is answered.

    Args:
        listener: of :func:`listening`.
        answer: the site.
        ended: whether it is done.
    """
    troubles = Troubles("the server asks it again until it can be answered")
    while not ended():
        try:
            with listener.accept() as courier:
                assert isinstance(courier, Connection)
                if not courier.poll(PATIENCE):
                    log.warning("a courier came without a message")
                    continue
                request, reply = courier.recv_bytes(LARGEST), b""
                with troubles.tried("this request"):  # without an answer the server asks again
                    reply = answer(request)
                if reply:
                    courier.send_bytes(reply)
        except AuthenticationError:
            log.warning("a courier has another key, and was sent away")
        except (EOFError, OSError) as error:
            log.warning("a courier went away: %s", type(error).__name__)


def asked(folder: Path, request: bytes) -> bytes:
    """What the site whose folder this is answers.

    Raises:
        UserError: where its process does not run.
    """
    try:
        address_file = json.loads((folder / ADDRESS).read_bytes())
        address = (
            address_file["address"] if isinstance(address_file["address"], str) else tuple(address_file["address"])
        )
        with Client(address, authkey=bytes.fromhex(address_file["key"])) as site:
            site.send_bytes(request)
            return site.recv_bytes(LARGEST)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise UserError(f"no site answers for {folder}: hierfl federate site --folder {folder}") from error
