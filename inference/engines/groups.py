"""What a round has brought by groups of clients, and what groups make together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import torch
from torch import Tensor

from ..messages.opened import masked_bytes, opened_sums
from ..messages.singles import Singles
from ..messages.sums import Sums
from ..options import Options
from ..server.exchange import Exchange
from .base import ClientStatus, Reports
from .remote.masks.groups import FEWEST


@dataclass(frozen=True)
class Collected:
    """A round's messages of some clients.

    Attributes:
        groups: their sums by group, one without ``mask_groups``; with masks digits.
        status: (S,), uint8, :class:`.base.ClientStatus`.
        diverged: (S,), True where a client's own computation has failed.
        singles: single messages, where they are collected.
    """

    groups: Sequence[Sums]
    status: Tensor
    diverged: Tensor
    singles: Singles | None = None


def reports_of(
    collected: Collected, exchange: Exchange, options: Options, members: Sequence[Collection[int]], clients: int
) -> Reports:
    """What a round has brought, as numbers.

    Args:
        collected: of all clients.
        exchange: what messages look like.
        options: of the fit.
        members: positions of each group's clients.
        clients: J.
    """
    if not options.masked:
        return Reports(collected.groups[0], collected.status, collected.diverged, collected.singles)
    opened = [opened_sums(sums, exchange.forms, clients) for sums in collected.groups]
    sent, status = clients * masked_bytes(exchange.forms), collected.status  # who has nothing to say sends zeros
    if not options.mask_groups:
        return Reports(replace(opened[0], bytes=sent), status, collected.diverged)
    parts = [sums if int(sums.reported) >= FEWEST else None for sums in opened]
    for part, group in zip(parts, members, strict=True):
        if part is None:  # sites open no sum of so few
            status[sorted(group)] = ClientStatus.REJECTED
    whole = reduce(add, (part for part in parts if part is not None), Sums.nothing(collected.diverged.device))
    whole = replace(whole, diverged=collected.diverged.sum(), bytes=sent)
    return Reports(whole, status, collected.diverged, group_singles(parts, members, exchange))


def group_singles(parts: Sequence[Sums | None], members: Sequence[Collection[int]], exchange: Exchange) -> Singles:
    """Sums of groups, as a robust rule compares them.

    Args:
        parts: each group's, as numbers; None of one that has not opened.
        members: positions of each group's clients.
        exchange: what messages look like.
    """
    counts = torch.tensor([0 if part is None else int(part.reported) for part in parts])
    messages = {
        name: {
            key: torch.stack(
                [
                    part.totals[name][key] if part is not None and int(part.reported) else torch.zeros(field.shape)
                    for part in parts
                ]
            ).to(field.dtype)
            for key, field in form.items()
        }
        for name, form in exchange.forms.items()
    }
    return Singles(
        [sorted(group) for group in members], counts, torch.tensor([part is not None for part in parts]), messages
    )  # fmt: skip
