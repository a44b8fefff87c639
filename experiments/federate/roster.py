"""A roster that changes while a study runs: sites leave, and sites join late."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from hierfl.inference.run.checkpoint import load, save
from hierfl.inference.server.robust.watch import KEPT

log = logging.getLogger("hierfl")
#: tensors of a server's checkpoint with a dimension for the clients, and which it is
BY_CLIENT = {"engine/counted": 0, "journal/status": 1}


def change_roster(folder: Path, before: Sequence[str], after: Sequence[str]) -> None:
    """Brings a server's checkpoint to another roster.

    Who leaves is asked no more. What it has sent stays in the shared values, as every sum does: a method that weighs
    the clients of a round alone forgets it with the next round, one that keeps running means does not. Who joins has
    reported in no round so far, and hears with its first request what all agreed on before the first round.

    Args:
        folder: of the checkpoint.
        before, after: the rosters.
    """
    tensors, record = load(folder)
    # Killed before the new study.toml was written, this has been done already.
    before = record.get("roster", before)
    for what, names in (("left", set(before) - set(after)), ("joined", set(after) - set(before))):
        if names:
            log.warning("the roster has changed after round %d: %s %s", record["round"], what, ", ".join(sorted(names)))
    for name, dim in BY_CLIENT.items():
        if name in tensors:
            tensors[name] = _rearranged(tensors[name], dim, before, after)
    # What is measured of clients is measured beside all others: it begins again.
    tensors = {k: v for k, v in tensors.items() if not k.startswith(f"journal/{KEPT}")}
    kept = {k: v for k, v in record.items() if k not in ("format", "state", "digest", "checksum")}
    save(folder, tensors, {**kept, "roster": list(after)})


def _rearranged(value: Tensor, dim: int, before: Sequence[str], after: Sequence[str]) -> Tensor:
    """Each client's part where the client is now; zeros of those who are new."""
    fresh = torch.zeros((*value.shape[:dim], len(after), *value.shape[dim + 1 :]), dtype=value.dtype)
    stay = [name for name in after if name in before]
    old, new = (torch.tensor([names.index(name) for name in stay], dtype=torch.long) for names in (before, after))
    return fresh.index_copy(dim, new, value.index_select(dim, old)) if stay else fresh
