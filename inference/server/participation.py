"""Who reports in a round."""

from __future__ import annotations

import math

from torch import Tensor

from hierfl.errors import UserError
from hierfl.rng import uniforms

#: how often who reports is drawn again before that is given up
ATTEMPTS = 10_000


def check_participation(clients: int, probability: float, least: int, whole: str = "") -> None:
    """Refuses what :func:`draw_participants` would give up on in one round of a hundred million, or more often.

    Args:
        clients: J.
        probability: with which each reports.
        least: so many have to.
        whole: a method that needs all of them, by name.

    Raises:
        UserError: if ``least`` of so many clients practically never report together.
    """
    if probability >= 1:
        return
    if whole:
        raise UserError(f"{whole} needs every client in each round: a participation of 1")
    log_p, log_q = math.log(probability), math.log1p(-probability)
    enough = math.fsum(
        math.exp(math.lgamma(clients + 1) - math.lgamma(k + 1) - math.lgamma(clients - k + 1)
                 + k * log_p + (clients - k) * log_q)
        for k in range(least, clients + 1)
    )  # fmt: skip
    if ATTEMPTS * enough < math.log(1e8):
        raise _never(clients, probability, least)


def _never(clients: int, probability: float, least: int) -> UserError:
    return UserError(
        f"with participation {probability} of {clients} clients, {least} practically never report together; "
        "raise participation (--participation)"
    )


def draw_participants(keys: Tensor, round: int, seed: int, probability: float, least: int) -> list[int]:
    """Who reports in this round: every client for itself with the same probability (Bernoulli), by its key.

    Where fewer than ``least`` would, everyone draws again (pFedVEM's public code asks for two).

    Raises:
        UserError: if that many practically never report.
    """
    if probability >= 1:
        return list(range(len(keys)))
    for attempt in range(ATTEMPTS):
        drawn = uniforms(keys, seed, round, "reports", attempt) < probability
        chosen: list[int] = drawn.nonzero().flatten().tolist()
        if len(chosen) >= least:
            return chosen
    raise _never(len(keys), probability, least)
