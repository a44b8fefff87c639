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
from ..model.levels import Level
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
    above = {of.kind: _effects(of, values, of.size, key(seed, number, "regions")) for of in method.above}
    for client, rows in zip(federation.ids, federation.train, strict=True):
        own = key(seed, number, client)
        columns = method.network.split(x[rows][None])
        eta = method.predictor(columns, values["beta"])[0]
        effects = {}
        for of in method.at_site:
            groups, name = (of.size, "groups") if of.inside else (1, "client")
            effects[of.kind] = _effects(of, values, groups, key(own, name))
        for kind, drawn in {**effects, **above}.items():
            z, group = columns.of(kind)
            eta = eta + linear(z[0], drawn if group is None else drawn[group[0].long()])
        here = Columns(**{k: v[0] for k, v in columns._asdict().items() if v is not None})
        with torch.random.fork_rng(devices=[]), pyro.validation_enabled(False):
            torch.default_generator.manual_seed(key(own, "rows") % 2**63)
            y[rows] = method.response(eta, values, here).sample().to(y)
    return y


def _effects(level: Level, values: State, groups: int, seed: int) -> Tensor:
    """New effects of so many groups of a level, (groups, q)."""
    root = level.root(values[level.name])
    z = normals(torch.Size([groups, len(root)]), seed, level.name, dtype=torch.float64)
    return z @ root.T
