"""Tables of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import pandas as pd

from hierfl.errors import UserError

from ..state import State


class Table(pd.DataFrame):
    """A DataFrame that says what it is where it is called; all that is made of it are plain ones."""

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return pd.DataFrame

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise UserError("this is a table, not a function: write run.metrics, not run.metrics()")


def clients_table(run: Any) -> Table:
    """See :attr:`~.result.Run.clients`."""
    federation = run.fitted.federation
    sizes = {"n": federation.sizes("train"), "n_test": federation.sizes("test")}
    columns: dict[str, Any] = {"client": list(federation.ids), **sizes}
    for before, metrics in zip(("", "draws_"), run.client_metrics, strict=False):
        columns |= {f"{before}{name}": value for name, value in metrics.items() if name not in ("n", "bins")}
    if run.calibration is not None:
        columns |= run.calibration.clients
    own = run.fitted.method.client_summary(run.fitted.values(range(federation.clients)))
    columns |= {k: v.cpu().numpy() for k, v in own.items()}
    if (lost := federation.about.get("left_out")) is not None:  # of tables: rows that lacked a value
        columns["left_out"] = [lost.get(str(j), 0) for j in federation.ids]
    return Table(columns)


def history_table(summaries: Sequence[tuple[int, State]], ids: Sequence[str]) -> Table:
    """A row for each evaluated round and client.

    Args:
        summaries: what the method has of each client, {name: (J,)}, by round.
        ids: the clients' names.
    """
    rounds = [
        pd.DataFrame({"round": number, "client": list(ids), **{k: v.numpy() for k, v in values.items()}})
        for number, values in summaries
    ]
    return Table(pd.concat(rounds, ignore_index=True) if rounds else {"round": [], "client": []})


def participation_table(status: np.ndarray | None, ids: Sequence[str]) -> Table:
    """A row for each round, a column for each client.

    Args:
        status: (rounds, J); None for no rounds.
        ids: the clients' names.
    """
    numbers = np.zeros((0, len(ids)), np.uint8) if status is None else status
    return Table(numbers, columns=list(ids), index=pd.RangeIndex(1, len(numbers) + 1, name="round"))
