"""Predictions of rows of a table, with intervals of the mean and of a response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from hierfl.data.client_names import client_names
from hierfl.data.formula import gate
from hierfl.data.formula.design import Columns
from hierfl.errors import UserError
from hierfl.inference.run.result import Run
from hierfl.inference.state import State
from hierfl.rng import key, normals

from .model import MixedModel, linear
from .questions import Likelihoods

if TYPE_CHECKING:
    import pandas as pd

#: a client's own; where its random effects are zero; of a client that is not among them
Level = Literal["client", "population", "new"]
#: draws x rows that are held at a time
NUMBERS_PER_PASS = 5_000_000


def predicted(run: Run, formula: str, df: pd.DataFrame, level: Level, interval: float) -> pd.DataFrame:
    """See :meth:`hierfl.models.mixed_effects.mixed_model.FittedMixedModel.predict`."""
    import pandas as pd

    method = run.fitted.method
    assert isinstance(method, MixedModel)
    inputs = torch.as_tensor(run.fitted.federation.about["reader"](df), dtype=torch.float64)
    owner = _owners(run, formula, df) if level == "client" else None
    population, b = _draws(method, run.shared, run.personal["b_draws"])
    number = len(population["beta"])
    parts, size = [], max(1, NUMBERS_PER_PASS // number)
    for first in range(0, len(inputs), size):
        columns = method.network.split(inputs[None, first : first + size])
        eta = method.predictor(columns, population["beta"][:, None, None])[:, 0]  # (D, n)
        if owner is not None:
            eta = eta + linear(columns.z[0], b[owner[first : first + size]].transpose(0, 1))
        elif level == "new":
            z = normals(torch.Size((number, method.covariance.q)), run.options.seed, "new client", dtype=torch.float64)
            root = method.covariance.matrix(population["root"])
            eta = eta + linear(columns.z[0], (root @ z[..., None]).squeeze(-1)[:, None])
        parts.append(_summary(method, eta, population, columns, interval, key(run.options.seed, "response", first)))
    names = ("mean", "lower", "upper", "response_lower", "response_upper")
    table = pd.DataFrame(np.concatenate(parts), columns=names, index=df.index)
    if owner is not None:
        table.insert(0, "client", [run.fitted.federation.ids[j] for j in owner.tolist()])
    return table


def _owners(run: Run, formula: str, df: pd.DataFrame) -> Tensor:
    """Which client each row belongs to, (n,)."""
    column = gate.parse(formula).groups[0]
    if column not in df.columns:
        raise UserError(
            f"the table lacks column {column!r}: whose model? (level='new' is of a client that is not known)"
        )
    place = {name: j for j, name in enumerate(run.fitted.federation.ids)}
    names = client_names(df[column], f"column {column!r}")
    if strange := sorted(set(names) - place.keys()):
        raise UserError(
            f"client {str(strange[0])!r} is not among those fitted: level='new' predicts for one that is not known"
        )
    return torch.tensor([place[name] for name in names])


def _draws(method: MixedModel, shared: State, b_draws: Tensor) -> tuple[State, Tensor]:
    """The population {name: (D, *shape)} and the clients' effects (J, D, q) at draws of both.

    Raises:
        UserError: for a fit without draws.
    """
    if not b_draws.shape[-2]:
        raise UserError("predictions have intervals by draws, and this fit has none: draws=1000")
    parts = method.parts(shared["effects.draws"])
    held = {k: v.expand(len(parts["beta"]), *v.shape) for k, v in Likelihoods.held(shared).items()}
    return {**held, **parts}, b_draws.flatten(1, 2)


def _summary(
    method: MixedModel, eta: Tensor, population: State, columns: Columns, interval: float, seed: int
) -> np.ndarray:
    """Mean, its interval, and a response's, (n, 5)."""
    values = {name: population[name][:, None] for name in method.response_family.starts}
    here = Columns(**{k: v[0] for k, v in columns._asdict().items() if v is not None})
    fn = method.response(eta, values, here)
    tails = eta.new_tensor([(1 - interval) / 2, (1 + interval) / 2])
    mean = fn.mean.expand_as(eta)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed % 2**63)
        drawn = fn.sample()
    low, high = torch.quantile(mean, tails, dim=0)
    response_low, response_high = torch.quantile(drawn.expand_as(eta), tails, dim=0)
    return torch.stack([mean.mean(0), low, high, response_low, response_high], -1).numpy()
