"""What a request asks for: its position in the study, and its broadcast values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..masks import MASK_KINDS
from .answers import Slot
from .lines import canonical

#: entries of a request's header that name what is asked of a round, beside the round itself
NAMES: dict[str, tuple[str, ...]] = {
    "prepare": ("step",),
    "round": (),
    "scores": ("split", "draws", "final"),
    "sums": ("summary", "new", "final"),
    "calibration": ("question", "final"),
    "finish": (),
}
#: kind of a request that tells a site what all have agreed on: it asks for nothing that is of its rows
HELLO = "hello"


def slot_of(head: Mapping[str, Any]) -> Slot | None:
    """The place of a request in its study; None for one that is none.

    Args:
        head: its header, whose handshake was checked.
    """
    kind, number = head.get("kind"), head.get("round")
    if kind not in (*NAMES, *MASK_KINDS) or not isinstance(number, int) or isinstance(number, bool) or number < 0:
        return None
    identity = [head.get(name) for name in NAMES.get(kind, ())]
    if kind == "prepare":  # sums over another roster are others; each roster is approved
        identity.append(head["handshake"]["roster"])
    return Slot(kind, number, canonical(identity) if identity else "")


def values_of(slot: Slot, tensors: Mapping[str, Tensor]) -> str:
    """A digest of broadcast values: two rounds with the same have one; whatever else is asked has its own."""
    digest = hashlib.sha256(b"" if slot.kind == "round" else slot.text.encode())
    for name, value in sorted(tensors.items()):
        digest.update(canonical([name, str(value.dtype), list(value.shape)]).encode())
        flat = value.detach().cpu().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().tobytes() if len(flat) else b"")
    return digest.hexdigest()
