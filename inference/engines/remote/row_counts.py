"""What single sites say in their sums before the first round: how many rows, and whether they are like the others'."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...server.robust.moments import lines
from ...state import State
from .wire import Unreadable, check_size

log = logging.getLogger("hierfl")

#: of a header: rows by site
ROWS = "rows"
#: likewise: lines about sites that stand out
UNLIKE_KEY = "unlike"
#: a whole number that was divided and multiplied is off by less
WHOLE_TOLERANCE = 1e-6


@dataclass(frozen=True)
class RowBounds:
    """What a site may declare, and what it has declared.

    Attributes:
        declared: from a step's number and a site's sums to the rows that they are of; None where they do not say it.
        least, most: rows of a site; 0 for no such bound.
        columns: which columns a step has moments of; see :func:`~hierfl.inference.server.robust.moments.lines`.
        found: {site's position: rows}, as far as they were declared.
        unlike: a line for each site whose moments stand out.
    """

    declared: Callable[[int, Mapping[str, Tensor]], float | None]
    least: int = 1
    most: int = 0
    columns: Callable[[int], Mapping[str, Sequence[str]]] = lambda step: {}
    rows_by_client: dict[int, int] = field(default_factory=dict)
    unlike: list[str] = field(default_factory=list)
    _sums: dict[int, State] = field(default_factory=dict)

    def check(self, step: int, clients: int, sums: Mapping[str, Tensor]) -> None:
        """Checks one site's sums of a step.

        Raises:
            Unreadable: for numbers that are too large, and for rows that are no whole number within the bounds.
        """
        check_size(sums, clients)
        rows = self.declared(step, sums)
        if rows is None:
            return
        if abs(rows - round(rows)) > WHOLE_TOLERANCE * max(1.0, abs(rows)):
            raise Unreadable("the rows that it declares are no whole number")
        if round(rows) < self.least or (self.most and round(rows) > self.most):
            bounds = f"{self.least} to {self.most}" if self.most else f"at least {self.least}"
            raise Unreadable(f"it declares {round(rows)} rows, and the study is of sites of {bounds} (study.toml)")

    def note(self, step: int, client: int, sums: Mapping[str, Tensor]) -> None:
        """Keeps what a site has declared."""
        if (rows := self.declared(step, sums)) is not None:
            self.rows_by_client.setdefault(client, round(rows))
        self._sums[client] = dict(sums)

    def compare(self, step: int, ids: Sequence[str]) -> None:
        """Names the sites whose sums of a step, which has ended, stand out.

        Args:
            step: its number.
            ids: names of all sites.
        """
        unlike = lines({ids[j]: sums for j, sums in sorted(self._sums.items())}, self.columns(step))
        self._sums.clear()
        self.unlike.extend(unlike)
        for line in unlike:
            log.warning(line)


def training_rows(rows: Mapping[str, int], clients: Sequence[str], held_out: float) -> Tensor | None:
    """The fewest and the most training rows that sites may declare in messages, (2, J); None where nothing is known.

    Args:
        rows: of sites by name, as they have declared.
        clients: the roster.
        held_out: the share of these rows that is no training data; 0 for none of them.
    """
    if not rows:
        return None
    most = torch.tensor([float(rows.get(client, torch.inf)) for client in clients], dtype=torch.float64)
    # How many rows are held out depends on groups and on chance.
    least = most if not held_out else (0.5 * (1 - held_out) * most).floor().clamp_min(1)
    return torch.stack([torch.where(most.isfinite(), least, 1), most])
