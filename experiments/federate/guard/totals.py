"""Sums over all sites that a site was sent before the first round: the first that it is sent stay as they are.

Whether the rules hold with them depends on the site's rows. So they are kept before the rules are tried: a server that
could say others after a refusal would learn something of the rows by each refusal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from hierfl.errors import UserError
from hierfl.files import make_folder, write_whole
from hierfl.inference.engines.remote.kept_bytes import decode_kept, encode_kept
from hierfl.inference.engines.remote.preparation import PREPARED_FILE, numbered, unnumbered
from hierfl.inference.engines.remote.wire import Unreadable
from hierfl.inference.state import State

#: of a study's folder
TOLD = "told.safetensors"


class Told:
    """The totals that a site was sent, and how many of their steps the rules have passed.

    Args:
        folder: the study's at its site.
        study: digest of the study.
        roster: that was approved. Before the first round another one may begin again, since its sums are others.

    Raises:
        UserError: for a damaged file, or one of another study.
    """

    def __init__(self, folder: Path, study: str, roster: str) -> None:
        self.path, self.study, self.roster = folder / TOLD, study, roster
        self.totals: list[State] = []
        self.passed = 0
        if self.path.is_file():
            try:
                head, tensors = decode_kept(self.path.read_bytes())
                self.totals = unnumbered(tensors)
            except Unreadable as error:
                raise UserError(f"{self.path} is damaged: {error}") from error
            if head.get("study") != study:
                raise UserError(f"{self.path} belongs to another study")
            if head.get("roster") != roster and not (folder / PREPARED_FILE).is_file():
                self.totals = []
            self.passed = min(int(head.get("passed", len(self.totals))), len(self.totals))

    def forget_refused(self) -> None:
        """Forgets totals with which the rules did not hold: anyone who approves the study again lets it say others."""
        if self.passed < len(self.totals):
            self.totals = self.totals[: self.passed]
            self._write()

    def agrees(self, totals: Sequence[State]) -> bool:
        """Whether what is sent now repeats what was sent, as far as both go."""
        return all(_same(state, other) for state, other in zip(self.totals, totals, strict=False))

    def is_new(self, totals: Sequence[State]) -> bool:
        """Whether more is sent than the rules have passed."""
        return len(totals) > self.passed

    def keep(self, totals: Sequence[State], *, passed: bool) -> None:
        """Keeps totals that agree with those before; they are on the disk when this returns.

        Args:
            totals: as sent.
            passed: whether the rules hold with them.
        """
        before = len(self.totals), self.passed
        self.totals = list(totals) if len(totals) > len(self.totals) else self.totals
        self.passed = max(self.passed, len(totals)) if passed else self.passed
        if before != (len(self.totals), self.passed):
            self._write()

    def _write(self) -> None:
        make_folder(self.path.parent)
        head = {"study": self.study, "roster": self.roster, "passed": self.passed}
        write_whole(self.path, encode_kept(head, numbered(self.totals)), mode=0o600)


def _same(state: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return state.keys() == other.keys() and all(torch.equal(state[name].cpu(), other[name].cpu()) for name in state)
