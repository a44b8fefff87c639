"""A run that was loaded from its folder, without the rows that were fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hierfl.argument_types import typed_call
from hierfl.arviz_data import dataset, gathered, group_names
from hierfl.arviz_io import read, without_rows
from hierfl.errors import UserError

from ..evaluation.inputs import client_row
from .result import Run

#: of a run's folder
POSTERIOR = "posterior.nc"


@dataclass(frozen=True, repr=False)
class LoadedRun(Run):
    """Predicts as the run did; its posterior is the one that its folder keeps.

    Attributes:
        folder: the run's.
    """

    folder: Path = field(default_factory=Path)

    @typed_call
    def posterior(
        self, draws: int | None = None, clients: int | str | Sequence[int | str] | None = None, *,
        float32: bool = False, limit: float = 100e6, observed: bool = True, rows: bool = True,
    ) -> Any:  # fmt: skip
        """The posterior as of :meth:`.result.Run.posterior`, from the draws that ``posterior.nc`` has.

        Args:
            draws: of each chain together, at most as many as the file has; None for all.
            clients: only this one or these; None for all.
            float32, limit: of no meaning for a file that is there.
            observed: whether to hold the training data's responses, where the file does.
            rows: whether to hold what has an entry for each training row, where the file does.

        Raises:
            UserError: for more draws than the file has, a client that does not exist, and a folder without the file.
        """
        path = self.folder / POSTERIOR
        if not path.is_file():
            raise UserError(f"{self.folder} has no {POSTERIOR}: load_run(folder, rows=True) draws from the model")
        data = read(path)
        data = data if rows else without_rows(data)
        kept = {group: dataset(data, group) for group in group_names(data) if observed or group != "observed_data"}
        if draws is not None:
            kept = {group: _some(group_data, draws, path) for group, group_data in kept.items()}
        if clients is not None:
            named = [clients] if isinstance(clients, int | np.integer | str) else clients
            ids = [self.ids[client_row(self.fitted.federation, client)] for client in named]
            if not ids or len(set(ids)) < len(ids):
                raise UserError("posterior takes at least one client, and each once")
            kept = {group: _of_clients(group_data, ids) for group, group_data in kept.items()}
        return gathered(kept, data.attrs)


def _some(data: Any, draws: int, path: Path) -> Any:
    """So many draws, of all chains together."""
    if "draw" not in data.dims:
        return data
    chains, kept = data.sizes["chain"], data.sizes["draw"]
    draws_of_chain = -(-draws // chains)
    if not 1 <= draws_of_chain <= kept:
        raise UserError(f"{path} has {chains * kept} draws, not {draws}: load_run(folder, rows=True) draws more")
    return data.isel(draw=slice(0, draws_of_chain))


def _of_clients(data: Any, ids: Sequence[str]) -> Any:
    """The values of some clients: along their dimension, and of single observations those that are theirs."""
    if "client" in data.dims:
        return data.sel(client=list(ids))
    for dim in data.dims:
        if "client" in data.coords and data.coords["client"].dims == (dim,):
            return data.isel({dim: np.flatnonzero(np.isin(data.coords["client"].values, list(ids)))})
    return data
