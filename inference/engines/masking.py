"""Masked sums, whatever the engine: which fits can have them."""

from __future__ import annotations

from collections.abc import Sequence

from hierfl.errors import UserError

from ..method.base import Method
from ..options import Options
from ..server.exchange import Exchange
from ..server.robust.usable import check_robust
from .remote.masks.groups import groups_of

#: of a sum over fewer clients each knows too much of the others
MIN_CLIENTS = 3


def check_maskable(method: Method, exchange: Exchange, options: Options, clients: int) -> None:
    """Refuses a fit with masks that cannot have them.

    Args:
        method: that is fitted.
        exchange: its messages.
        options: of the fit; without ``masked`` nothing is refused.
        clients: J.

    Raises:
        UserError: in one line, with the remedy.
    """
    if not options.masked:
        return
    name = method.name or type(method).__name__
    if clients < MIN_CLIENTS:
        raise UserError(
            f"masks need at least {MIN_CLIENTS} clients, not {clients}: each would know the other's part of a sum"
        )
    if exchange.individual:
        group, more = exchange.individual[0], ""
        if getattr(method.settings, "one_round", False):
            more = ", or one_round=False"
        raise UserError(
            f"{name}: the messages of {group!r} are looked at one by one, and masks open sums: no masks{more}"
        )
    if method.replies:
        raise UserError(f"{name}: the server makes each client's {method.replies[0]!r}, and masks open sums: no masks")
    if coded := [group for group, sending in exchange.sending.items() if sending.pipeline.stages]:
        raise UserError(f"the messages of {coded[0]!r} are compressed, and such bytes do not add up: compress='none'")
    check_robust(options, exchange, clients)
    if options.mask_groups:
        _check_groups(options, clients)


def _check_groups(options: Options, clients: int) -> None:
    if clients // options.mask_groups < MIN_CLIENTS:
        raise UserError(
            f"mask_groups={options.mask_groups} leaves a group of {clients // options.mask_groups} of {clients} "
            f"clients, and {MIN_CLIENTS} are needed: at most {clients // MIN_CLIENTS}"
        )
    if options.participation < 1:
        raise UserError("mask_groups needs participation=1: of a group too few might report")


def client_groups(ids: Sequence[str], options: Options) -> list[set[int]]:
    """Positions of the clients whose messages are added up together: all of them without ``mask_groups``.

    Args:
        ids: all clients' names.
        options: of the fit.
    """
    groups = groups_of(ids, options.mask_groups, str(options.seed)) if options.mask_groups else [ids]
    return [{ids.index(name) for name in group} for group in groups]


def least_reporting(options: Options) -> int:
    """How many clients a round needs at least."""
    return max(options.quorum, MIN_CLIENTS) if options.masked else options.quorum


def check_enough(sizes: Sequence[int], split: str, options: Options) -> None:
    """Refuses sums of a calibration that fewer than three clients add to.

    Args:
        sizes: each client's examples of the split.
        split: what the sums are of.
        options: of the fit.

    Raises:
        UserError: with masks, where one or two clients have examples.
    """
    having = sum(n > 0 for n in sizes)
    if options.masked and 0 < having < MIN_CLIENTS:
        raise UserError(
            f"{having} of {len(sizes)} clients have {split} examples, and masks need {MIN_CLIENTS}: no calibration, "
            "or a split in which more of them have some"
        )
