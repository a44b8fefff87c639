"""A client that was never seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hierfl.errors import UserError

from ..clients.chunk import ClientChunk
from ..local.base import LocalStep
from .fitted import Fitted


def fit_new_client(
    fitted: Fitted, x: Tensor, y: Tensor, rounds: int, name: str = "newcomer", steps: Sequence[LocalStep] | None = None
) -> Fitted:
    """A client that was never seen, with its own posterior from a few examples; nothing shared moves, nothing is sent.

    Args:
        fitted: what the federation has learned.
        x, y: its examples: raw inputs (n, *event) and targets (n,).
        rounds: how often it does so.
        name: of the client, by which its noise is keyed.
        steps: the local steps of a round; None for the method's own, see
            :meth:`~hierfl.inference.method.base.Method.new_client_steps`.

    Raises:
        UserError: for a method with nothing personal to learn.
    """
    method, old = fitted.method, fitted.federation
    steps = method.new_client_steps() if steps is None else steps
    if not (method.conditions or (fitted.initial and steps)):
        raise UserError(f"{method.name or type(method).__name__} has nothing that a new client could learn for itself")
    nothing = torch.empty(0, dtype=torch.long, device=old.device)
    federation = replace(
        old, x=x, y=y, train=[torch.arange(len(x), device=old.device)], validation=[nothing], test=[nothing],
        global_test=nothing, ids=[name], weights=None,
    )  # fmt: skip
    rows = fitted.newcomer()
    rows = {k: v[None, None].clone() for k, v in rows.items()}
    chunk = ClientChunk(method, federation, [0], 0, fitted.seed, fitted.shared, rows)
    with torch.no_grad():
        for again in range(rounds):
            for phase, step in enumerate(steps):
                chunk = step.run(chunk, ("newcomer", again, phase))
    personal = {k: chunk.values[k].squeeze(1) for k in rows}
    return replace(fitted, federation=federation, personal=personal, copies={})
