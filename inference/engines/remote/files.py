"""Requests and answers as files: for sites without an open port, by a shared folder, SFTP, mail or a stick.

A folder for each client, with ``requests`` and ``replies``. A file's name says the round, what is asked for and a
digest of the request; what is said of it is in the file alone. Who may read or write there is the folder's to say.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from hierfl.files import PART_SUFFIX, make_folder, shown, write_whole

from .wire import Unreadable, header, is_cut_off

log = logging.getLogger("hierfl")
REQUEST, REPLY = ".request", ".reply"
#: seconds between two looks at a folder
POLL = 0.2
#: bytes of a file that is read at all
LARGEST = 2**31


def name_of(request: bytes) -> str:
    """The name of a request's file, without its suffix; that of its reply is the same.

    Raises:
        Unreadable: for bytes that are no request.
    """
    head = header(request)
    number, kind = head.get("round"), head.get("kind")
    letters = isinstance(kind, str) and kind.isascii() and kind.isalpha()
    if not isinstance(number, int) or not 0 <= number < 10**9 or not letters:
        raise Unreadable("it says no round and kind")
    return f"{number:06d}-{str(kind)[:20]}-{hashlib.sha256(request).hexdigest()[:16]}"


def requests_in(folder: Path, client: str) -> list[Path]:
    """A client's requests that have no reply yet, oldest round first; none that are still being copied."""
    replies = {path.stem for path in (folder / client / "replies").glob(f"*{REPLY}")}
    found = sorted((folder / client / "requests").glob(f"*{REQUEST}"))
    return [path for path in found if path.stem not in replies and (data := read(path)) and not is_cut_off(data)]


def read(path: Path) -> bytes:
    """A file from elsewhere; nothing of one that is not there, no plain file, or too large."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            return b""
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def reply_path(folder: Path, client: str, request: bytes) -> Path:
    """Where the reply to a request belongs."""
    return folder / client / "replies" / f"{name_of(request)}{REPLY}"


class FileCourier:
    """An :data:`~hierfl.inference.engines.remote.questions.Ask` by way of a folder.

    Args:
        folder: with a folder for each client; made where it is not there.
        clients: the roster; each name is that of a folder.
        deadline: seconds after which an answer is late, and is not used; 0 waits until all have answered.
        waiting: is called with the names of those who have not answered, whenever that changes.
    """

    def __init__(
        self, folder: Path, clients: Iterable[str], deadline: float = 0.0,
        waiting: Callable[[list[str]], None] = lambda names: None,
    ) -> None:  # fmt: skip
        self.folder, self.deadline, self.waiting = folder, deadline, waiting
        for client in clients:
            for part in ("requests", "replies"):
                make_folder(folder / client / part)

    def leave(self, requests: Mapping[str, bytes]) -> None:
        """Lays requests out beside what is there, and waits for nothing."""
        for client, request in requests.items():
            write_whole(self.folder / client / "requests" / f"{name_of(request)}{REQUEST}", request)

    def __call__(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """Lays requests out, and waits for their replies."""
        replies = {}
        for client, request in requests.items():
            replies[client] = path = reply_path(self.folder, client, request)
            self._tidy(client, path)
            write_whole(self.folder / client / "requests" / f"{path.stem}{REQUEST}", request)
        found: dict[str, bytes] = {}
        said: set[str] = set()
        left: list[str] | None = None
        end = time.monotonic() + self.deadline if self.deadline else float("inf")
        while True:
            there = {name: data for name, path in replies.items() if name not in found and (data := read(path))}
            new = {name: data for name, data in there.items() if not is_cut_off(data)}
            if cut := there.keys() - new.keys() - said:
                log.warning("not whole yet, and waited for: the reply of %s", ", ".join(sorted(cut)))
                said |= cut
            found |= new
            if (now := [name for name in replies if name not in found]) != left:
                left = now
                self.waiting(left)
            if not left or time.monotonic() > end:
                return found
            time.sleep(POLL)

    def _tidy(self, client: str, reply: Path) -> None:
        """Takes away what was asked before, and replies to it that come too late.

        A reply that says that there is no answer goes, too, where the same is asked once more: what was in its way may
        have been mended.
        """
        for path in (self.folder / client / "requests").glob(f"*{REQUEST}"):
            if path.stem != reply.stem:
                path.unlink(missing_ok=True)
        for path in (self.folder / client / "replies").glob(f"*{REPLY}"):
            if not path.is_dir() and (path.stem != reply.stem or _refuses(read(path))):
                path.unlink(missing_ok=True)


def _refuses(reply: bytes) -> bool:
    """Whether a reply holds no answer."""
    try:
        head = header(reply)
        return "error" in head or bool(head.get("refused"))
    except Unreadable:
        return True


def answer_all(folder: Path, client: str, answer: Callable[[bytes], bytes]) -> int:
    """Answers a client's requests that wait in a folder; how many there were."""
    done = 0
    for path in requests_in(folder, client):
        request = read(path)
        try:
            reply = reply_path(folder, client, request)
        except Unreadable as error:
            log.warning("%s is no request: %s", shown(path.name), error)
            path.rename(path.with_suffix(f"{PART_SUFFIX}.refused"))
            continue
        make_folder(reply.parent)
        write_whole(reply, answer(request))
        done += 1
    return done
