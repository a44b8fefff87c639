"""Requests and answers as files: for sites without an open port, by a shared folder, SFTP, mail or a stick.

A folder for each client, with ``requests`` and ``replies``. A file's name states the round, what is asked for and a
digest of the request; what is said of it is in the file alone. Who may read or write there is the folder's to say: a
file whose name is not that of its content is no request, and no link below the exchange folder is followed.
"""

from __future__ import annotations

import hashlib
import logging
import re
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from hierfl.files import make_folder, shown
from hierfl.plain_folder import PlainFolder, read_plain
from hierfl.troubles import Troubles

from .refusals import OF_ALL, ends_waiting, kind_of, note_refusal, refusal_in
from .wire import Unreadable, header, is_cut_off

log = logging.getLogger("hierfl")
REQUEST, REPLY = ".request", ".reply"
#: seconds between two looks at a folder
POLL = 0.2
#: bytes of a file that is read at all
LARGEST = 2**31
#: seconds after which a request that has vanished is laid out once more, and the longest such pause
LAID_AGAIN, LONGEST_PAUSE = 1.0, 60.0
#: names that are ours, without their suffix
OURS = re.compile(r"\d{6,9}-[A-Za-z]{1,20}-[0-9a-f]{16}")
#: what has been said of files that are left alone: {path: size and time}
_left_alone: dict[Path, tuple[int, int]] = {}


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
    """A client's requests that have no reply yet, oldest round first; none that are still being copied.

    Only a plain file whose name is that of its content is a request. Any other, such as a conflicted copy of a
    synchronised folder, is left alone, with one line in the log.
    """
    requests = PlainFolder(folder, client, "requests")
    return [requests.path / f"{name}{REQUEST}" for name in _waiting(requests, _replied(folder, client))]


def _replied(folder: Path, client: str) -> set[str]:
    names = PlainFolder(folder, client, "replies").names()
    return {name.removesuffix(REPLY) for name in names if name.endswith(REPLY)}


def _waiting(requests: PlainFolder, replied: set[str]) -> list[str]:
    """Names of requests, without their suffix."""
    stems = []
    for name in requests.names():
        stem = name.removesuffix(REQUEST)
        if stem == name or name.startswith(".") or stem in replied or not (status := requests.entry_status(name)):
            continue
        path, mark = requests.path / name, (status.st_size, status.st_mtime_ns)
        if _left_alone.get(path) == mark:
            continue
        if stat.S_ISLNK(status.st_mode) or not stat.S_ISREG(status.st_mode):
            _leave(path, mark, "it is a link, or no plain file")
            continue
        data = requests.read(name, LARGEST)
        if data and is_cut_off(data) and OURS.fullmatch(stem):
            continue  # it is still being copied
        if data and (problem := _problem(stem, data)):
            _leave(path, mark, problem)
        elif data:
            stems.append(stem)
    return stems


def _problem(stem: str, data: bytes) -> str:
    """Why bytes under a name are no request; empty where they are."""
    try:
        return "" if name_of(data) == stem else "its name is not that of its content"
    except Unreadable as error:
        return str(error)


def _leave(path: Path, mark: tuple[int, int], why: str) -> None:
    _left_alone[path] = mark
    log.warning("%s is no request, and is left alone: %s", shown(path.name), why)


def read(path: Path) -> bytes:
    """A file from elsewhere; nothing of one that is not there, no plain file, or too large.

    Raises:
        Linked: for a link, which is not followed.
    """
    return read_plain(path, LARGEST)


def reply_path(folder: Path, client: str, request: bytes) -> Path:
    """The path of the reply to a request."""
    return folder / client / "replies" / f"{name_of(request)}{REPLY}"


class FileCourier:
    """An :data:`~hierfl.inference.engines.remote.questions.Ask` by way of a folder.

    A folder that cannot be used (a mount that is away, a full disk) is tried again, and what has vanished is laid out
    once more. A site that refuses for good is asked, and not waited for; what needs all sites ends with a refusal.

    Args:
        folder: with a folder for each client; made where it is not there.
        clients: the roster; each name is that of a folder.
        deadline: seconds after which an answer is late, and is not used; 0 waits until all have answered.
        waiting: is called with the names of those who have not answered, whenever that changes.

    Attributes:
        of_all: see :class:`.questions.Courier`.
        refusing: who refuses for good, and is not waited for.
    """

    def __init__(
        self, folder: Path, clients: Iterable[str], deadline: float = 0.0,
        waiting: Callable[[list[str]], None] = lambda names: None,
    ) -> None:  # fmt: skip
        self.folder, self.deadline, self.waiting = folder, deadline, waiting
        self.of_all: frozenset[str] = OF_ALL
        self.refusing: set[str] = set()
        self.troubles = Troubles()
        make_folder(folder)
        for client in clients:
            for part in ("requests", "replies"):
                PlainFolder(folder, client, part).make()

    def leave(self, requests: Mapping[str, bytes]) -> None:
        """Lays requests out beside what is there, and waits for nothing."""
        for client, request in requests.items():
            with self.troubles.tried(f"the exchange folder of {client}"):
                PlainFolder(self.folder, client, "requests").write(f"{name_of(request)}{REQUEST}", request)

    def __call__(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """Lays requests out, and waits for their replies."""
        self.troubles.hurry()
        asked = {client: _Asked(self.folder, client, request) for client, request in requests.items()}
        kind = kind_of(requests)
        replies: dict[str, bytes] = {}
        left: list[str] | None = None
        end = time.monotonic() + self.deadline if self.deadline else float("inf")
        while True:
            last = time.monotonic() > end
            for client, asked_file in asked.items():
                what = f"the exchange folder of {client}"
                if client in replies or not (last or self.troubles.due(what)):
                    continue
                with self.troubles.tried(what):
                    if not asked_file.laid:
                        self._tidy(client, asked_file.name)
                    if reply := asked_file.looked():
                        replies[client] = reply
                        note_refusal(self.refusing, client, reply)
            if (now := [client for client in asked if client not in replies]) != left:
                left = now
                self.waiting(left)
            if last or not set(left) - self.refusing or ends_waiting(kind, self.of_all, replies.values()):
                return replies
            time.sleep(POLL)

    def _tidy(self, client: str, asked: str) -> None:
        """Takes away what was asked before, and replies to it that come too late; what is not ours stays.

        A reply that says that there is no answer goes, too, where the same is asked once more: what was in its way may
        have been mended.
        """
        requests, replies = (PlainFolder(self.folder, client, part) for part in ("requests", "replies"))
        for name in requests.names():
            if name.endswith(REQUEST) and OURS.fullmatch(stem := name.removesuffix(REQUEST)) and stem != asked:
                requests.remove(name)
        for name in replies.names():
            stem = name.removesuffix(REPLY)
            if stem == name or not OURS.fullmatch(stem):
                continue
            status = replies.entry_status(name)
            reply = replies.read(name, LARGEST) if status and stat.S_ISREG(status.st_mode) else b""
            if stem != asked:
                if reply and not refusal_in(reply):
                    self.refusing.discard(client)  # it answers again, if late
                replies.remove(name)
            elif _refuses(reply):
                replies.remove(name)


class _Asked:
    """One request in the exchange folder, and its reply."""

    def __init__(self, folder: Path, client: str, request: bytes) -> None:
        self.client, self.request, self.name = client, request, name_of(request)
        self.requests, self.replies = (PlainFolder(folder, client, part) for part in ("requests", "replies"))
        self.laid = self.warned = False
        self._pause, self._due = LAID_AGAIN, 0.0

    def looked(self) -> bytes:
        """The whole reply; nothing while there is none. A request that is not there is laid out."""
        self._lay()
        if not self.replies.entry_status(f"{self.name}{REPLY}"):
            return b""
        data = self.replies.read(f"{self.name}{REPLY}", LARGEST)
        if data and is_cut_off(data) and not self.warned:
            self.warned = True
            log.warning("not whole yet, and waited for: the reply of %s", self.client)
        return b"" if is_cut_off(data) else data

    def _lay(self) -> None:
        now = time.monotonic()
        if self.laid and now < self._due:
            return
        if not self.laid or self.requests.entry_status(f"{self.name}{REQUEST}") is None:
            if self.laid:
                log.warning("the request to %s has vanished, and is laid out once more", self.client)
            self.requests.write(f"{self.name}{REQUEST}", self.request)
            self.laid = True
        self._due, self._pause = now + self._pause, min(2 * self._pause, LONGEST_PAUSE)


def _refuses(reply: bytes) -> bool:
    """Whether a reply holds no answer."""
    try:
        head = header(reply)
    except Unreadable:
        return True
    return "error" in head or bool(head.get("refused"))


class RequestFiles:
    """A client's side of the exchange folder.

    What cannot be read, answered or written is tried again with a growing pause; an answer that could not be written
    is kept, and not computed again.

    Args:
        folder: the exchange folder.
        client: its name.
        answer: the site.
    """

    def __init__(self, folder: Path, client: str, answer: Callable[[bytes], bytes]) -> None:
        self.requests, self.replies = (PlainFolder(folder, client, part) for part in ("requests", "replies"))
        self.folder, self.client, self.answer = folder, client, answer
        self.troubles = Troubles()
        self._unwritten: dict[str, bytes] = {}

    def answered(self) -> int:
        """Answers the requests that wait, as far as that is possible now; how many there were."""
        folder_label, names = f"the exchange folder of {self.client}", list[str]()
        if self.troubles.due(folder_label):
            with self.troubles.tried(folder_label):
                names = _waiting(self.requests, _replied(self.folder, self.client))
        return sum(self._answered(name) for name in names if self.troubles.due(f"request {name}"))

    def _answered(self, name: str) -> bool:
        with self.troubles.tried(f"request {name}"):
            if name not in self._unwritten:
                request = self.requests.read(f"{name}{REQUEST}", LARGEST)
                if not request or _problem(name, request):
                    return False  # it has vanished, or another has replaced it
                self._unwritten = {name: self.answer(request)}
            self.replies.write(f"{name}{REPLY}", self._unwritten[name])
            del self._unwritten[name]
            return True
        return False


def answer_all(folder: Path, client: str, answer: Callable[[bytes], bytes]) -> int:
    """Answers a client's requests that wait in a folder, once; how many there were."""
    return RequestFiles(folder, client, answer).answered()
