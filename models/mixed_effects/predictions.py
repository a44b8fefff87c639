"""Predictions of rows of a table, with intervals of the mean and of a response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from hierfl.data.client_names import client_names
from hierfl.data.formula.design import Columns
from hierfl.data.spellings import as_known
from hierfl.errors import UserError
from hierfl.inference.run.result import Run
from hierfl.inference.state import State
from hierfl.rng import key, normals

from .arithmetic import linear
from .model import MixedModel
from .questions import Likelihoods

if TYPE_CHECKING:
    import pandas as pd

#: a client's own; where its random effects are zero; of a client that is not among them
Level = Literal["client", "population", "new"]
#: draws x rows that are held at a time
NUMBERS_PER_PASS = 5_000_000


def predicted(run: Run, df: pd.DataFrame, level: Level, interval: float) -> pd.DataFrame:
    """See :meth:`hierfl.models.mixed_effects.mixed_model.FittedMixedModel.predict`."""
    import pandas as pd

    method = run.fitted.method
    assert isinstance(method, MixedModel)
    reader = run.fitted.federation.about["reader"]
    df = reader.prepared(df)
    # (of no rows the answer has the columns of that for one)
    inputs = torch.as_tensor(reader(df) if len(df) else run.fitted.federation.x[:1], dtype=torch.float64)
    owner = _owners(run, df) if level == "client" else None
    population, own = _draws(method, run)
    number = len(population["beta"])
    parts, size = [], max(1, NUMBERS_PER_PASS // number)
    for first in range(0, len(inputs), size):
        columns = method.network.split(inputs[None, first : first + size])
        eta = method.predictor(columns, population["beta"][:, None, None])[:, 0]  # (D, n)
        if owner is not None:
            eta = eta + _of_clients(columns, own, owner[first : first + size])
        elif level == "new":
            eta = eta + _of_new(method, columns, population, run.options.seed)
        if level != "population" and columns.z_outer is not None and columns.outer is not None:
            eta = eta + linear(columns.z_outer[0], population["regions"][:, columns.outer[0].long()])
        parts.append(_summary(method, eta, population, columns, interval, key(run.options.seed, "response", first)))
    names = ("mean", "lower", "upper", "response_lower", "response_upper")
    table = pd.DataFrame(np.concatenate(parts), columns=names)
    if owner is not None:
        table.insert(0, "client", [run.fitted.federation.ids[j] for j in owner.tolist()])
    return table.iloc[: len(df)].set_axis(df.index)


def _of_clients(columns: Columns, own: State, owner: Tensor) -> Tensor:
    """What rows' clients' effects add to eta, and those of groups inside them, (D, n)."""
    found = linear(columns.z[0], own["b"][owner].transpose(0, 1))
    if columns.z_inner is None or columns.inner is None:
        return found
    c = own["c"][owner, :, columns.inner[0].long()]  # (n, D, q)
    return found + linear(columns.z_inner[0], c.transpose(0, 1))


def _of_new(method: MixedModel, columns: Columns, population: State, seed: int) -> Tensor:
    """The same of one client that is not known, with one group inside it, (D, n)."""
    found = columns.x.new_zeros(())
    for level, z in (("root", columns.z), ("inner_root", columns.z_inner)):
        if z is not None:
            root, name = method.covariances[level].matrix(population[level]), f"new {level}"
            noise = normals(torch.Size(root.shape[:2]), seed, name, dtype=torch.float64)
            found = found + linear(z[0], (root @ noise[..., None]).squeeze(-1)[:, None])
    return found


def _owners(run: Run, df: pd.DataFrame) -> Tensor:
    """Which client each row belongs to, (n,)."""
    reader = run.fitted.federation.about["reader"]
    column = reader.places.levels.client
    if column not in df.columns:
        raise UserError(
            f"the table lacks column {column!r}: whose model? (level='new' is of a client that is not known)"
        )
    place = {name: j for j, name in enumerate(run.fitted.federation.ids)}
    if not len(df):
        return torch.zeros(1, dtype=torch.long)
    names = client_names(df[column], f"column {column!r}")
    names = as_known(names, place, reader.spellings[column], f"column {column!r}")
    if strange := sorted(set(names) - place.keys()):
        raise UserError(
            f"client {str(strange[0])!r} is not among those fitted: level='new' predicts for one that is not known"
        )
    return torch.tensor([place[name] for name in names])


def _draws(method: MixedModel, run: Run) -> tuple[State, State]:
    """The population {name: (D, *shape)}, and the clients' effects, b (J, D, q) and c (J, D, G, q), at draws of all.

    Raises:
        UserError: for a fit without draws.
    """
    shared = run.shared
    if not run.personal["b_draws"].shape[-2]:
        raise UserError("predictions have intervals by draws, and this fit has none: draws=1000")
    parts = method.parts(shared["effects.draws"])
    held = {k: v.expand(len(parts["beta"]), *v.shape) for k, v in Likelihoods.held(shared).items()}
    own = {name: run.personal[f"{name}_draws"].flatten(1, 2) for name in ("b", "c") if f"{name}_draws" in run.personal}
    return {**held, **parts}, own


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
