"""Weights of rows and sums."""

from __future__ import annotations

from torch import Tensor


def times_rows(weight: Tensor, value: Tensor) -> Tensor:
    """(S,) times (S, *shape)."""
    return weight.view(-1, *[1] * (value.dim() - 1)) * value


def append_dims(weight: Tensor, value: Tensor) -> Tensor:
    """(*first,) beside (*first, *shape)."""
    return weight.view((*weight.shape, *[1] * (value.dim() - weight.dim())))  # a tuple: it may be empty


def server_step(server_lr: float, old: Tensor, new: Tensor) -> Tensor:
    """Moves an old value towards a new one; a rate of 1 replaces it."""
    return (1 - server_lr) * old + server_lr * new if server_lr != 1 else new
