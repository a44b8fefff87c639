"""What a method says of itself. Nothing here needs torch: lists of methods are made from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class About:
    """What a method is.

    Args:
        name: on the command line, in runs and in tables.
        what: the method in words.
        paper: authors, venue and year; empty for none.
        family: which limit of the one model it is, or what it adds to one.
        stays: what stays with a client from round to round.
        sent: what a client sends.
        message_size: of a client's message, relative to FedAvg's, for mlp:100 on 28x28 images of ten classes; None
            where the method has no such network.
        order: its position in lists.
    """

    name: str
    what: str = ""
    paper: str = ""
    family: str = ""
    stays: str = ""
    sent: str = ""
    message_size: float | None = None
    order: int = 0

    @property
    def text(self) -> str:
        """The method in words, with its paper in brackets."""
        return f"{self.what} ({self.paper})" if self.paper else self.what
