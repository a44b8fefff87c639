"""Flower as what carries requests: all that knows flwr's Python is here.

A courier at a site hands bytes to the site's own process and its answer back. It imports no torch, so that a message
costs little; it knows nothing of what it carries.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from hierfl.errors import UserError
from hierfl.files import shown

from ..messages import log_to_stderr
from .local_socket import LARGEST, asked

log = logging.getLogger("hierfl")
#: seconds between two looks at what has come
POLL = 0.1
#: seconds after which a site is asked again whose node or process was away
RETRY_SECONDS = 2.0
#: seconds after which a request is sent once more whose node says nothing, and the longest such pause
RESEND, LONGEST_PAUSE = 60.0, 3600.0
#: seconds that a message is kept for a node, where there is no deadline
MAX_KEPT_SECONDS = 30 * 24 * 3600.0
#: seconds in which nodes hear that the server ends
LINGER = 10.0
#: seconds in which a node has to say which site it is, where nodes have no keys
ANSWER_WHO = 60.0

client = ClientApp()
server = ServerApp()


def packed(data: bytes) -> RecordDict:
    """Bytes as Flower carries them."""
    return RecordDict({"body": ArrayRecord({"bytes": Array(np.frombuffer(data, np.uint8))})})


def unpacked(content: RecordDict) -> bytes:
    """Undoes :func:`packed`. What a node has sent may be anything.

    Raises:
        UserError: for what is no string of bytes.
    """
    try:
        array = content.array_records["body"]["bytes"]
        if array.stype != "numpy.ndarray" or len(array.data) > LARGEST:
            raise UserError("it holds no bytes, or too many")
        body = array.numpy()  # never unpickled; what is declared of it may not be so
    except UserError:
        raise
    except Exception as error:  # whatever flwr and numpy say of what others have made
        raise UserError(f"it is no message of ours ({type(error).__name__})") from error
    if body.dtype != np.uint8 or body.ndim != 1:
        raise UserError("it holds something else than bytes")
    return body.tobytes()


@client.train("ask")
def ask(message: Message, context: Context) -> Message:
    """Carries a request to a site's process, and its answer back; runs at the site."""
    folder = Path(str(context.node_config["folder"]))
    return Message(packed(asked(folder, unpacked(message.content))), reply_to=message)


@client.train("who")
def who(message: Message, context: Context) -> Message:
    """Returns the name that a site whose node has no key gives itself; runs at the site."""
    name = str(context.node_config.get("client", ""))
    return Message(RecordDict({"who": ConfigRecord({"client": name})}), reply_to=message)


@server.main()
def serve_by_flower(grid: Grid, context: Context) -> None:
    """Serves a study, whose requests Flower carries; runs at the coordinator."""
    from hierfl.inference.engines.remote.keys import Identity

    from .nodes import read_nodes
    from .server import serve
    from .study import Study

    log_to_stderr()
    config = context.run_config
    # Who has begun this run has named the method's file.
    study = Study.read(Path(str(config["study"])), trust_code=bool(config["trust_code"]))
    home = Path(str(config["home"]))
    nodes = read_nodes(study.path) or None
    if nodes is None:
        log.warning("nodes are not registered: each is believed to be the site that it says")
    serve(
        study, Path(str(config["out"])),
        lambda recorded: FlowerAsk(grid, study.clients, nodes, float(config["deadline"]), recorded.waiting),
        Identity.load(home), earlier=Identity.earlier(home), resume=bool(config["resume"]),
        restart=bool(config["restart"]), progress=False,
    )  # fmt: skip


class FlowerAsk:
    """An :data:`~hierfl.inference.engines.remote.questions.Ask` over Flower's grid.

    Args:
        grid: Flower's.
        clients: the roster.
        nodes: {client: node}, as they were registered: what a node says of itself does not count. None where no node
            has a key: then it does.
        deadline: seconds after which an answer is late, and is not used; 0 waits until all have answered.
        waiting: is called with the names of those who have not answered, whenever that changes.

    Attributes:
        of_all: see :class:`~hierfl.inference.engines.remote.questions.Courier`.
        refusing: who refuses for good, and is not waited for.
    """

    def __init__(
        self, grid: Grid, clients: list[str], nodes: Mapping[str, int] | None, deadline: float = 0.0,
        waiting: Callable[[list[str]], None] = lambda names: None,
    ) -> None:  # fmt: skip
        self.grid, self.clients, self.deadline, self.waiting = grid, clients, deadline, waiting
        self.registered = nodes is not None
        self.nodes = {name: nodes[name] for name in clients if name in nodes} if nodes else {}
        from hierfl.inference.engines.remote.refusals import OF_ALL  # a courier at a site imports no torch

        self.of_all, self.refusing = OF_ALL, set[str]()
        self.known = dict(nodes) if nodes else {}
        for name in clients if nodes else ():
            if name not in self.nodes:
                log.warning("%s has no node: hierfl federate register", name)

    def leave(self, requests: Mapping[str, bytes]) -> None:
        """Sends requests whose answers do not matter to the nodes that are there, and lingers until they have come.

        Flower drops what is under way when the server's run ends: nodes that are away hear nothing.
        """
        present = self._connected_nodes(self.known)
        reached = {present[name]: packed(request) for name, request in requests.items() if name in present}
        sent = self._push(reached, "train.ask", time.monotonic() + LINGER, present)
        end = time.monotonic() + LINGER
        while sent and time.monotonic() < end:
            for _ in self._pulled(sent):
                pass
            time.sleep(POLL)

    def __call__(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """Sends requests to the nodes that are there, and waits for replies; nodes that come later are sent theirs."""
        from hierfl.inference.engines.remote.refusals import ends_waiting, kind_of, note_refusal

        end = time.monotonic() + self.deadline if self.deadline else float("inf")
        answers: dict[str, bytes] = {}
        refused: set[str] = set()
        warned: set[str] = set()
        due: dict[str, float] = {}  # when who has not answered is asked once more
        pause = dict.fromkeys(requests, RESEND)
        sent: dict[str, str] = {}
        left: list[str] | None = None
        kind = kind_of(requests)
        while True:
            present, now = self._connected_nodes(), time.monotonic()
            todo = [
                name for name in requests
                if name in present and name not in answers and name not in refused and due.get(name, 0.0) <= now
            ]  # fmt: skip
            sent |= self._push({present[name]: packed(requests[name]) for name in todo}, "train.ask", end, present)
            for name in todo:
                # A node that is killed takes with it what it was brought: the same request gets the same answer.
                due[name], pause[name] = now + pause[name], min(2 * pause[name], LONGEST_PAUSE)
            for name, reply in self._pulled(sent):
                if name in answers:
                    continue
                if reply.has_error():  # its node or its process is away: both may come back
                    if name not in warned:
                        reason = shown(" ".join((reply.error.reason or "").split())[:200])
                        log.warning("%s is asked again: error %s of Flower: %s", name, reply.error.code, reason)
                    warned.add(name)
                    due[name] = time.monotonic() + RETRY_SECONDS
                    continue
                try:
                    answers[name] = unpacked(reply.content)
                    note_refusal(self.refusing, name, answers[name])
                except UserError as error:
                    log.warning("the reply of %s is not used: %s", name, error)
                    refused.add(name)
            if (waited := [name for name in requests if name not in answers and name not in refused]) != left:
                left = waited
                self.waiting(left)
            if ends_waiting(kind, self.of_all, answers.values()) or not set(left) - self.refusing or now > end:
                return {name: answers[name] for name in requests if name in answers}
            time.sleep(POLL)

    def _connected_nodes(self, earlier: Mapping[str, int] | None = None) -> dict[str, int]:
        """The sites whose nodes are there now, of those on the roster or of ``known``."""
        ids = set(self.grid.get_node_ids())
        if not self.registered:
            self.nodes = {name: node for name, node in self.nodes.items() if node in ids}
            self._ask_who(sorted(ids - set(self.nodes.values())))
        return {name: node for name, node in {**(earlier or {}), **self.nodes}.items() if node in ids}

    def _ask_who(self, strangers: list[int]) -> None:
        """Asks nodes without keys which sites they are; the first that says a name has it."""
        end = time.monotonic() + ANSWER_WHO
        names = {str(node): node for node in strangers}
        sent = self._push({node: RecordDict() for node in strangers}, "train.who", end, names)
        while sent and time.monotonic() < end:
            for node, reply in self._pulled(sent):
                if reply.has_error():
                    continue
                record = reply.content.config_records.get("who", {})
                name = str(record.get("client", ""))
                if name in self.clients and name not in self.nodes:
                    self.nodes[name] = names[node]
                else:
                    log.warning(
                        "node %s says that it is %s: not one of ours, or there already", node, shown(name[:100])
                    )
            time.sleep(POLL)

    def _push(
        self, content: Mapping[int, RecordDict], kind: str, end: float, present: Mapping[str, int]
    ) -> dict[str, str]:
        """Sends messages; {number of the message: whose it is}."""
        names = {node: name for name, node in present.items()}
        keep = MAX_KEPT_SECONDS if end == float("inf") else max(1.0, end - time.monotonic())
        messages = [Message(c, dst_node_id=node, message_type=kind, ttl=keep) for node, c in content.items()]
        if not messages:
            return {}
        numbers = self.grid.push_messages(messages)
        return {number: names[node] for number, node in zip(numbers, content, strict=True) if number}

    def _pulled(self, sent: dict[str, str]) -> Iterator[tuple[str, Message]]:
        """What has come of messages; these are no longer in ``sent``.

        Errors that Flower itself reports do not say whose they are: the number of the message does.
        """
        if sent:
            for reply in self.grid.pull_messages(list(sent)):
                name = sent.pop(reply.metadata.reply_to_message_id, None)
                if name is not None:
                    yield name, reply
