"""Sums over all sites that a site was told before the first round: the first that it answers with stay as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from hierfl.errors import UserError
from hierfl.files import make_folder, write_whole
from hierfl.inference.engines.remote.preparation import PREPARED_FILE, numbered, unnumbered
from hierfl.inference.engines.remote.wire import Unreadable, decode, encode
from hierfl.inference.state import State

#: of a study's folder
TOLD = "told.safetensors"


class Told:
    """The totals that a site was told, as far as it has answered with them.

    Args:
        folder: the study's at its site.
        study: digest of the study.
        roster: that was approved. Before the first round another one may begin anew, since its sums are others.

    Raises:
        UserError: for a damaged file, or one of another study.
    """

    def __init__(self, folder: Path, study: str, roster: str) -> None:
        self.path, self.study, self.roster = folder / TOLD, study, roster
        self.totals: list[State] = []
        if self.path.is_file():
            try:
                head, tensors = decode(self.path.read_bytes())
                self.totals = unnumbered(tensors)
            except Unreadable as error:
                raise UserError(f"{self.path} is damaged: {error}") from error
            if head.get("study") != study:
                raise UserError(f"{self.path} belongs to another study")
            if head.get("roster") != roster and not (folder / PREPARED_FILE).is_file():
                self.totals = []

    def agrees(self, totals: Sequence[State]) -> bool:
        """Whether what is told now repeats what was told, as far as both go."""
        return all(_same(one, other) for one, other in zip(self.totals, totals, strict=False))

    def is_new(self, totals: Sequence[State]) -> bool:
        """Whether more is told than before."""
        return len(totals) > len(self.totals)

    def keep(self, totals: Sequence[State]) -> None:
        """Keeps them; they are on the disk when this returns."""
        make_folder(self.path.parent)
        write_whole(self.path, encode({"study": self.study, "roster": self.roster}, numbered(totals)), mode=0o600)
        self.totals = list(totals)


def _same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name].cpu(), other[name].cpu()) for name in one)
