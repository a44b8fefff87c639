"""A validation set out of every client's training set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import unknown
from ..federation_checks import check_fraction
from .registry import Index

#: of what a fraction is held out
OF = ("classes", "clients")


def hold_out(
    train: Sequence[Index], ids: Sequence[str], y: np.ndarray, fraction: float, seed: int, task: str,
    stratify: str = "classes",
) -> tuple[list[Index], list[Index]]:  # fmt: skip
    """Takes a validation set out of every client's training set.

    Classification: ``fraction`` of each class of which the client has at least ten; regression: of clients with at
    least ten rows. With ``of="clients"`` a fold of every client's rows whatever their classes, one row at least of
    clients that have three: small clients are judged, too. What is held out depends on the client alone, not on who
    else there is.

    Raises:
        UserError: for a fraction that is none, or another ``of``.
    """
    check_fraction("validation", fraction)
    if stratify not in OF:
        raise unknown("validation_of", stratify, OF)
    if not fraction:
        return list(train), [np.empty(0, dtype=np.int64) for _ in train]
    kept, held_out = [], []
    for index, name in zip(train, ids, strict=True):
        rng = np.random.default_rng([seed, *b"validation", *str(name).encode()])
        groups, least = [index], 10 if stratify == "classes" else 3
        if task == "classification" and stratify == "classes":
            groups = [index[y[index] == label] for label in np.unique(y[index])]
        chosen = [
            rng.choice(group, max(1, round(fraction * len(group))), replace=False)
            for group in groups
            if len(group) >= least
        ]
        out = np.sort(np.concatenate(chosen)) if chosen else np.empty(0, dtype=np.int64)
        held_out.append(out)
        kept.append(np.setdiff1d(index, out, assume_unique=True))
    return kept, held_out
