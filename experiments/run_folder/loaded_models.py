"""Fitted models of tables that were loaded from a run's folder: what needs draws at all rows is read from its files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hierfl.calls import checked_call
from hierfl.errors import UserError
from hierfl.inference.run.loaded import LoadedRun
from hierfl.models.any_model.fitted_model import FittedModel
from hierfl.models.any_model.printed import ModelSummary
from hierfl.models.mixed_effects.rowless_fit import RowlessMixedModel
from hierfl.plurals import counted

from .csv_files import read_frame

if TYPE_CHECKING:
    import pandas as pd


class LoadedMixedModel(RowlessMixedModel):
    """A fitted mixed model of a run's folder, whose ``posterior.nc`` has its draws."""

    def posterior(self, **how: Any) -> Any:
        """See :meth:`hierfl.inference.run.loaded.LoadedRun.posterior`."""
        return self.run.posterior(**how)


class LoadedModel(FittedModel):
    """A fitted plain model of a run's folder: draws are those that ``posterior.nc`` has."""

    @property
    def folder(self) -> Path:
        """The run's."""
        return cast("LoadedRun", self.run).folder

    @property
    def globals(self) -> dict[str, np.ndarray]:
        return self._draws(of_clients=False)

    @property
    def clients(self) -> dict[str, np.ndarray]:
        return self._draws(of_clients=True)

    def _draws(self, *, of_clients: bool) -> dict[str, np.ndarray]:
        """Draws by site, (draws, *shape), or (draws, J, *shape)."""
        values = self.posterior(rows=False).posterior.data_vars
        kept = {name: v for name, v in values.items() if ("client" in v.dims) == of_clients}
        return {str(name): v.values.reshape(-1, *v.shape[2:]) for name, v in kept.items()}

    @property
    def client_names(self) -> list[str]:
        return list(self.run.ids)

    @checked_call
    def summary(self) -> ModelSummary:
        """The summary of the fit, from globals.csv."""
        federation = self.run.fitted.federation
        sizes = (federation.clients, "client"), (sum(federation.sizes()), "row"), (self.run.rounds, "round")
        size = ", ".join(counted(number, word) for number, word in sizes)
        table = read_frame(self.folder / "globals.csv", ("name",), ("name",))
        return ModelSummary(self.method.name, size, table, tuple(self.method.notes(self.run.fitted, self.run.rounds)))

    def client_table(self) -> pd.DataFrame:
        return read_frame(self.folder / "clients.csv", ("client",), ("client",), whole=True)

    @checked_call
    def loo(self, site: str | None = None) -> Any:
        """Leave-one-out of the fit, from the log likelihoods that ``posterior.nc`` has."""
        from hierfl.arviz_io import loo

        return loo(self.posterior(), site)

    @checked_call
    def posterior(
        self, *, prior: int | None = None, predictive: bool = True, rows: bool = True, observed: bool = True
    ) -> Any:
        """What ``posterior.nc`` has; with ``rows=False`` nothing that has an entry for each row.

        Raises:
            UserError: for other draws from the prior than the file has.
        """
        if prior is not None or not predictive:
            raise UserError("prior= and predictive= draw again: load_run(folder, rows=True) can")
        return self.run.posterior(rows=rows, observed=observed)
