"""Tables of responses simulated from a fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hierfl.data.client_names import client_names
from hierfl.errors import UserError
from hierfl.inference.checks import check_whole
from hierfl.inference.run.result import Run
from hierfl.rng import key

from ..model.equations import MixedModel
from ..model.names import by_short_name
from ..report.simulating import Places, responses, simulated
from .rows import RowLevel, Rows, effects_at_estimates, group_codes, predictor, rows_of, single_client

if TYPE_CHECKING:
    import pandas as pd


def simulations(run: Run, df: pd.DataFrame | None, n: int, seed: int, level: RowLevel) -> pd.DataFrame:
    """See :meth:`.of_rows.OfRows.simulate`."""
    import pandas as pd

    check_whole("n", n, 1)
    check_whole("seed", seed, 0)
    method = run.fitted.method
    assert isinstance(method, MixedModel)
    if df is not None and method.network.correlation is not None:
        raise UserError("simulate(df) of a model with correlation= is of the rows that were fitted: leave df out")
    rows = rows_of(run, df, level, response=False)
    if level == "new":
        places = None if df is None else _places(run, df, rows)
        drawn = [simulated(run, k, seed, places) for k in range(n)]
    else:
        estimates = {k: v.cpu() for k, v in by_short_name(run.shared).items()}
        own = effects_at_estimates(run.fitted) if level == "client" else None
        eta = predictor(method, rows, estimates, own)
        if own is not None and rows.owner is not None:
            estimates |= method.spread(own["b_mean"][rows.owner])
        columns = single_client(rows.columns(method))
        drawn = [responses(method, eta, estimates, columns, key(seed, k, "rows")) for k in range(n)]
    return pd.DataFrame({k: _in_table(method, y) for k, y in enumerate(drawn)}, rows.index)


def _places(run: Run, df: pd.DataFrame, rows: Rows) -> Places:
    """Whose the rows of another table are: any clients and groups, by their names there.

    Raises:
        UserError: for a table that does not say it.
    """
    reader, design = run.fitted.federation.about["reader"], run.fitted.method.network
    levels = reader.places.levels
    if levels.client not in df.columns:
        raise UserError(f"the table lacks column {levels.client!r}: which rows share their random effects?")
    df, inputs = reader.prepared(df), rows.inputs.clone()
    for kind, codes in group_codes(reader, df).items():
        inputs[:, design.extras.index(kind) - len(design.extras)] = torch.as_tensor(codes)  # type: ignore[attr-defined]
    who = client_names(df[levels.client], f"column {levels.client!r}").astype(str)
    clients = [(str(name), torch.as_tensor(np.flatnonzero(who == name))) for name in np.unique(who)]
    return Places(inputs, clients, torch.zeros(len(df), dtype=torch.float64))


def _in_table(method: MixedModel, y: Tensor) -> np.ndarray:
    """Responses as the table has them: levels by their names."""
    names = method.response_family.level_names
    if not names:
        return y.numpy()
    responses = np.empty(len(y), dtype=object if any(isinstance(name, str) for name in names) else float)
    responses[:] = [names[int(k) - 1] for k in y]
    return responses
