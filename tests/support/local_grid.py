"""Flower's grid in one process: its apps as they are, without a SuperLink.

Of flwr's private parts it sets one class, which the constructor of messages reads.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

#: what becomes of a node's reply: None loses it
Change = Callable[[int, Message, Message], Message | None]


class LocalGrid(Grid):
    """Nodes that answer at once.

    Args:
        app: that every node runs.
        nodes: {number: its configuration}.
        change: what becomes of replies, given the node, what was asked, and its reply.
    """

    def __init__(self, app: ClientApp, nodes: Mapping[int, Mapping[str, Any]], change: Change | None = None) -> None:
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
        self.app, self.change = app, change
        self.contexts = {
            number: Context(run_id=1, node_id=number, node_config=dict(config), state=RecordDict(), run_config={})
            for number, config in nodes.items()
        }
        self.replies: dict[str, Message] = {}

    def set_run(self, run: Any) -> None:
        """There is one."""

    @property
    def run(self) -> Any:
        """Nobody asks."""
        raise NotImplementedError

    def create_message(self, *what: Any, **more: Any) -> Message:
        """Messages are made without it."""
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        """All of them."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Every node answers, or fails."""
        numbers = []
        for original in messages:
            message, number = copy.deepcopy(original), str(uuid.uuid4())
            message.metadata.__dict__["_message_id"] = number
            numbers.append(number)
            node = message.metadata.dst_node_id
            try:
                reply: Message | None = copy.deepcopy(self.app(message, self.contexts[node]))
            except Exception as error:  # as Flower does
                reply = Message(Error(code=2, reason=repr(error)), reply_to=message)
            if self.change is not None and reply is not None:
                reply = self.change(node, message, reply)
            if reply is not None:
                self.replies[number] = reply
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Those that have come."""
        return [self.replies.pop(number) for number in list(message_ids) if number in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Nobody calls it."""
        raise NotImplementedError
