"""What a site adds to a sum, and what the sum is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ....state import State, StateForm

#: "whole": the sum of all sites opens by itself; "shares": one over survivors that two thirds have signed
Mode = Literal["whole", "shares"]
#: kinds of requests of the masks themselves; what else is asked is masked, or sent to all
KEYS, SHARES, SIGN, OPEN = "keys", "shares", "sign", "open"
#: kinds of questions that are answered with masks, of which no other answer leaves a site
MASKED = ("prepare", "round", "scores", "sums", "calibration")
#: of these, those of which the sum over some sites is one, too
OVER_SURVIVORS = ("round", "scores")
#: masked counts, in this order, before a message's own numbers
COUNTS = ("reported", "diverged", "refused")


@dataclass(frozen=True)
class Contribution:
    """What one site adds to a sum, after its own checks of it.

    Attributes:
        form: of the sum's tensors, the same at every site and at the server.
        values: of this form; empty where this site has nothing to say, or nothing sound: it adds zeros.
        reported: whether values are a message that counts.
        diverged: whether this site's own computation has failed.
        refused: whether its message failed a check, so that it adds zeros.
    """

    form: StateForm
    values: State = field(default_factory=dict)
    reported: bool = False
    diverged: bool = False
    refused: bool = False


@dataclass(frozen=True)
class Total:
    """A sum over clients.

    Attributes:
        sums: of the form asked for.
        clients: places on the roster of those whose answers are in it, zeros included, ascending.
        reported: how many messages are in it.
        diverged: at how many sites the computation has failed.
        refused: how many sites have no message in it since it failed a check of theirs.
        opened: whether there are sums; else they are zeros: too few messages are there to open one.
    """

    sums: State
    clients: list[int]
    reported: int
    diverged: int = 0
    refused: int = 0
    opened: bool = True


#: from a plain request, as it is without masks, to what the site adds, or to an answer that is sent as it is: a refusal
Contribute = Callable[[bytes], Contribution | bytes]
#: what the same at the server says of a client alone: {place on the roster: {entry of the header: value}}
Own = Mapping[int, Mapping[str, object]]
