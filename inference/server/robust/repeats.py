"""Who sends a message of an earlier round again, to the bit, though another was asked for."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from .standing import AGAIN, FEWEST, StandsOut

Print = tuple[float, ...]
#: messages that differ by less, relative to their size, are answers to next to the same question
ROUNDING = 1e-9
#: a client's messages that differ by less, relative to their size, have come to a limit
SETTLED = 1e-6


@functools.lru_cache(maxsize=4)
def _directions(size: int, device: torch.device) -> Tensor:
    """(size, 2): what messages of so many numbers are projected on."""
    at = torch.arange(size, dtype=torch.float64, device=device)
    return torch.stack([(at * step).cos() for step in (1.0, 2.0**0.5)], 1)


def fingerprints(messages: Mapping[str, Mapping[str, Tensor]]) -> Tensor:
    """Two numbers of each row's message, (R, 2) in float64: equal for equal messages, and hardly for others.

    Args:
        messages: {group: {key: (R, *shape)}}.
    """
    parts = [
        value.reshape(rows, value.numel() // rows)
        for group in sorted(messages)
        for _, value in sorted(messages[group].items())
        if (rows := len(value))
    ]
    if not parts:
        return torch.zeros(1, 2, dtype=torch.float64)
    flat = torch.cat([part.double() for part in parts], 1)
    return flat @ _directions(flat.shape[1], flat.device)


class Repeats:
    """What each client has said so far, and who alone has said something again.

    Where two or more repeat what they said in the same round, the same was asked again. Who says nothing, in zeros
    alone, repeats nothing, and neither does a client whose message had come to a limit before. Where most others have
    said the same but for rounding, next to the same was asked.

    Attributes:
        rounds: that have been added.
        found: {row: how it stands out}.
    """

    def __init__(self) -> None:
        self.rounds = 0
        self.outliers: dict[int, StandsOut] = {}
        self._prints: list[np.ndarray] = []
        self._earlier: dict[tuple[int, Print], list[int]] = {}
        self._asked: list[Print] = []

    def add(self, prints: np.ndarray) -> None:
        """Another round.

        Args:
            prints: (J + 1, 2), of :func:`fingerprints`; not a number where there is no message. The last row is the
                broadcast's. Of no rows where nothing is known.
        """
        self.rounds += 1
        self._prints.append(prints[:-1])
        rows = [tuple(row) for row in prints.tolist()] or [(np.nan, np.nan)]
        self._asked.append(rows[-1])
        present = [(j, row) for j, row in enumerate(rows[:-1]) if row[0] == row[0]]
        same: dict[int, list[int]] = {}
        for j, row in present:
            if any(row):
                before = self._earlier.setdefault((j, row), [])
                for earlier in before:
                    same.setdefault(earlier, []).append(j)
                before.append(self.rounds - 1)
        if len(present) < FEWEST - 1:
            return
        for earlier, who in same.items():
            if len(who) > 1 or self._asked[earlier] == rows[-1] or self._has_converged(earlier, who[0]):
                continue
            if self._moved(earlier, who[0]):
                self.outliers.setdefault(who[0], StandsOut(who[0], self.rounds, AGAIN, float("nan")))

    def _has_converged(self, earlier: int, row: int) -> bool:
        """Whether a client's message had come to its limit before: rows that are separated say the same to the bit."""
        if not earlier:
            return False
        before, now = self._prints[earlier - 1][row], self._prints[-1][row]
        return bool(np.isclose(before, now, rtol=SETTLED, atol=0).all())

    def _moved(self, earlier: int, row: int) -> bool:
        """Whether most of the others say something else than in an earlier round, by more than rounding."""
        then, now = (np.delete(self._prints[number], row, 0) for number in (earlier, -1))
        comparable = ~np.isnan(then + now).any(1)
        same = np.isclose(then[comparable], now[comparable], rtol=ROUNDING, atol=0).all(1)
        return bool(2 * same.sum() < comparable.sum())
