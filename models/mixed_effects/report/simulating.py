"""Responses simulated from a fitted mixed model, each client by itself."""

from __future__ import annotations

import pyro
import torch
from torch import Tensor

from hierfl.data.formula.design import Columns
from hierfl.inference.run.result import Run
from hierfl.inference.state import State
from hierfl.rng import key, normals

from ..model.arithmetic import linear
from ..model.equations import MixedModel
from ..model.names import short


def simulated(run: Run, number: int, seed: int) -> Tensor:
    """Responses (N,) drawn at the estimates: of new effects of every group, and new rows.

    Args:
        run: the fit.
        number: of the replicate; another one has other noise.
        seed: of the replicates.
    """
    method, federation = run.fitted.method, run.fitted.federation
    assert isinstance(method, MixedModel)
    values = {k: v.cpu() for k, v in short(run.shared).items()}
    x, y = federation.x.to(torch.float64), federation.y.clone()
    regions = _effects(method, values, "outer_root", method.regions + 1, key(seed, number, "regions"))
    for client, rows in zip(federation.ids, federation.train, strict=True):
        own = key(seed, number, client)
        columns = method.network.split(x[rows][None])
        eta = method.predictor(columns, values["beta"])[0]
        eta = eta + linear(columns.z[0], _effects(method, values, "root", 1, key(own, "client")))
        if columns.inner is not None and columns.z_inner is not None:
            inner = _effects(method, values, "inner_root", method.slots, key(own, "groups"))
            eta = eta + linear(columns.z_inner[0], inner[columns.inner[0].long()])
        if columns.outer is not None and columns.z_outer is not None:
            eta = eta + linear(columns.z_outer[0], regions[columns.outer[0].long()])
        here = Columns(**{k: v[0] for k, v in columns._asdict().items() if v is not None})
        with torch.random.fork_rng(devices=[]), pyro.validation_enabled(False):
            torch.default_generator.manual_seed(key(own, "rows") % 2**63)
            y[rows] = method.response(eta, values, here).sample().to(y)
    return y


def _effects(method: MixedModel, values: State, level: str, groups: int, seed: int) -> Tensor:
    """New effects of so many groups of a level, (groups, q)."""
    if level not in method.covariances:
        return torch.zeros(groups, 1, dtype=torch.float64)
    root = method.covariances[level].matrix(values[level])
    z = normals(torch.Size([groups, len(root)]), seed, level, dtype=torch.float64)
    return z @ root.T
