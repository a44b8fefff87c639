"""What a fit has been through: evaluations, what clients did, and how that goes into a checkpoint and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hierfl.errors import UserError
from hierfl.files import shown
from hierfl.schema import AnyOf, Number, Schema

from ..engines.base import ClientStatus, Reports, Scores
from ..state import State
from .rounds import held_out_sums

#: one evaluation on one split
Row = dict[str, Any]
#: an evaluation has numbers, or nothing where one does not apply
EVALUATION: Schema = {
    "round": Number(int, 0), "split": str, "diverged?": AnyOf(Number(int, 0), None), "*": AnyOf(Number(), None)
}  # fmt: skip
#: what a checkpoint says beside the tensors
RECORD: Schema = {
    "seconds": Number(float, 0), "diverged": Number(int, 0), "refused?": Number(int, 0), "federation": str,
    "dtype": str,
    "metrics": [EVALUATION],
    "tested?": {"round": Number(int, 0), "metrics": [[str]]},
    "fit": {"method": str, "settings": {"*": str}, "*": AnyOf(Number(), str, bool)},
}  # fmt: skip


@dataclass
class Journal:
    """What a fit has been through.

    Attributes:
        round: the round that runs, or else the last one that has ended.
        seconds: spent in them (evaluation and writing left out).
        diverged: how often a client's own computation has failed.
        refused: messages that were not used, of clients that are not known.
        evaluations: one for each evaluated round and split.
        summaries: what the method has of each client, by evaluated round: {name: (J,)}.
        held_out: what validation data say of each evaluated round: (J, 2), see :mod:`.rounds`; empty where what single
            clients have is not known.
        tested: round and clients' metrics of the last evaluation on test data: at the posterior mean, and averaged over
            draws if there are any.
        status: what every client did, by round: (J,), :class:`~hierfl.inference.engines.base.ClientStatus`.
    """

    round: int = 0
    seconds: float = 0.0
    diverged: int = 0
    evaluations: list[Row] = field(default_factory=list)
    summaries: list[tuple[int, State]] = field(default_factory=list)
    status: list[Tensor] = field(default_factory=list)
    held_out: list[tuple[int, Tensor]] = field(default_factory=list)
    refused: int = 0
    tested: tuple[int, list[dict[str, np.ndarray]]] | None = None

    @property
    def tested_now(self) -> list[dict[str, np.ndarray]] | None:
        """Clients' metrics on test data after the last round; None where it was not evaluated."""
        return self.tested[1] if self.tested is not None and self.tested[0] == self.round else None

    @property
    def statuses(self) -> np.ndarray | None:
        """(rounds, J); None before the first."""
        return torch.stack(self.status).cpu().numpy() if self.status else None

    def note(self, split: str, scores: Scores) -> None:
        """Keeps what later rounds are compared by, and what the last one has reached."""
        if split == "validation" and scores.clients is not None and not scores.masked:
            self.held_out.append((self.round, held_out_sums(scores.clients[0])))
        if split == "test" and scores.clients is not None:
            self.tested = self.round, scores.clients

    def add(self, reports: Reports) -> None:
        """Keeps what became of a round's messages."""
        self.status.append(reports.status)
        self.refused += reports.refused

    @property
    def rejected(self) -> int:
        """Messages that were not used."""
        return self.refused + sum(int((status == ClientStatus.REJECTED).sum()) for status in self.status)

    def last(self, split: str) -> Row | None:
        """The last evaluation on a split."""
        return next((row for row in reversed(self.evaluations) if row["split"] == split), None)

    def tensors(self) -> State:
        """Its part of a checkpoint's tensors."""
        return {
            **({"status": torch.stack(self.status)} if self.status else {}),
            **{f"summaries/{t}/{k}": v for t, values in self.summaries for k, v in values.items()},
            **{f"held_out/{t}": values for t, values in self.held_out},
            **self._tested(),
        }

    def _tested(self) -> State:
        clients = self.tested[1] if self.tested else []
        return {
            f"tested/{k}/{name}": torch.as_tensor(v) for k, metrics in enumerate(clients) for name, v in metrics.items()
        }

    def record(self) -> dict[str, Any]:
        """Its part of a checkpoint's json."""
        record: dict[str, Any] = {
            "round": self.round,
            "seconds": self.seconds,
            "diverged": self.diverged,
            "metrics": self.evaluations,
        }
        if self.tested:
            record["tested"] = {"round": self.tested[0], "metrics": [list(metrics) for metrics in self.tested[1]]}
        return {**record, "refused": self.refused} if self.refused else record

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], record: Mapping[str, Any], device: torch.device) -> Journal:
        """The one that :meth:`tensors` and :meth:`record` have described.

        Raises:
            UserError: for metrics that the record names, and the tensors lack.
        """
        validation: dict[int, State] = {}
        held_out = {int(k.removeprefix("held_out/")): v.cpu() for k, v in tensors.items() if k.startswith("held_out/")}
        for key, value in sorted(tensors.items()):
            prefix, _, rest = key.partition("/")
            if prefix == "summaries":
                number, _, name = rest.partition("/")
                validation.setdefault(int(number), {})[name] = value.cpu()
        tested = record.get("tested")
        metrics = tested["metrics"] if tested else []
        wanted = [[(name, f"tested/{k}/{name}") for name in names] for k, names in enumerate(metrics)]
        if lacking := [name for names in wanted for name, key in names if key not in tensors]:
            raise UserError(f"the checkpoint is damaged: it lacks clients' metric {shown(lacking[0])!r}")
        clients = [{name: tensors[key].cpu().numpy() for name, key in names} for names in wanted]
        status = list(tensors["status"].to(device)) if "status" in tensors else []
        return cls(
            record["round"], record["seconds"], record["diverged"], record["metrics"], sorted(validation.items()),
            status,
            sorted(held_out.items(), key=lambda pair: pair[0]), record.get("refused", 0),
            (tested["round"], clients) if tested else None,
        )  # fmt: skip
