"""What the server of masked sums keeps on its disk: keys, shares that it carries, and the question that it is at."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hierfl.errors import UserError
from hierfl.files import make_folder, write_whole

from ..wire import Unreadable, decode, encode

#: of the server's folder
STATE_FILE, PACKETS_FILE, ROWS_FILE = "masks.json", "masks-packets.safetensors", "masks-sums.safetensors"


@dataclass
class ServerState:
    """See the module.

    Attributes:
        study: digest of the study.
        roster: digest of the roster.
        epoch: number of the keys; 0 before the first.
        keys: {client: its signed keys, as they are carried}.
        fixed: whether the keys were sent on, so that no more can come.
        told: who has answered since it was sent the keys of all.
        dealt: who has dealt shares.
        next: the first slot that no question has used.
        stale: whether a site that has other keys is there: the next question begins a later epoch.
        floor: the latest epoch that any site has said that it is at.
        slots: for how many questions there are keys; -1 before the first epoch.
        question: of the last question with shares: digest, slot, {group: survivors} once they are known.
    """

    study: str
    roster: str
    epoch: int = 0
    keys: dict[str, str] = field(default_factory=dict)
    fixed: bool = False
    told: list[str] = field(default_factory=list)
    dealt: list[str] = field(default_factory=list)
    next: int = 0
    stale: bool = False
    floor: int = 0
    slots: int = -1
    question: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path, study: str, roster: str) -> ServerState:
        """What is on the disk; another roster's keys are of no use.

        Raises:
            UserError: for a damaged file, or one of another study.
        """
        path = folder / STATE_FILE
        if not path.is_file():
            return cls(study, roster)
        try:
            state = cls(**json.loads(path.read_text("utf-8")))
        except (TypeError, ValueError) as error:
            raise UserError(f"{path} is damaged: move it away; the sites make new keys") from error
        if state.study != study:
            raise UserError(f"{path} belongs to another study; a study needs a folder of its own")
        # Sites are at that epoch of the roster before: there can be no other keys of it.
        return state if state.roster == roster else cls(study, roster, state.epoch, floor=state.epoch, stale=True)

    def begin(self) -> None:
        """A later epoch: other keys, and nothing that was made with those before."""
        self.epoch = max(self.epoch, self.floor) + 1
        self.keys, self.fixed, self.told = {}, False, []
        self.dealt, self.next, self.stale, self.question = [], 0, False, {}

    def save(self, folder: Path) -> None:
        """Writes the state to disk."""
        make_folder(folder)
        text = json.dumps(asdict(self), indent=1).encode()
        path = folder / STATE_FILE
        if not path.is_file() or path.read_bytes() != text:
            write_whole(path, text, mode=0o600)


def write_tensors(path: Path, name: str, tensors: Mapping[str, Tensor]) -> None:
    """Tensors of one thing, on the disk."""
    make_folder(path.parent)
    write_whole(path, encode({"of": name}, tensors), mode=0o600)


def read_tensors(path: Path, name: str) -> dict[str, Tensor]:
    """Undoes :func:`write_tensors`; none of another thing."""
    if not path.is_file():
        return {}
    try:
        head, tensors = decode(path.read_bytes())
    except Unreadable as error:
        raise UserError(f"{path} is damaged: {error}") from error
    return tensors if head.get("of") == name else {}


def as_tensor(row: np.ndarray) -> Tensor:
    """A row of integers modulo 2^64 as a tensor of the same bits."""
    return torch.from_numpy(row.view(np.int64))


def as_row(tensor: Tensor) -> np.ndarray:
    """Undoes :func:`as_tensor`."""
    return tensor.numpy().view(np.uint64)
