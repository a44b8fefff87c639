"""The globals alone, where no client's rows are: what the server of a study has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from hierfl.inference.state import State

from .evaluating import constrained
from .names import DRAWS
from .simulated import Simulator

if TYPE_CHECKING:
    from .plain import PlainModel


def everyones_draws(method: PlainModel, shared: State) -> dict[str, np.ndarray]:
    """Draws of the globals on their supports, {site: (draws, *shape)}; deterministic sites of theirs included.

    Args:
        method: the model.
        shared: what the server has.
    """
    x = shared[DRAWS].cpu()
    if not len(method.sites.start):
        return {}
    simulate = Simulator(method.program, method.sites, method.network)
    row = method.network.template(x.new_zeros(()), max(1, method.sites.rows))
    columns = torch.cat(list(row.columns.values()))
    values = constrained(method.sites, x)
    simulated = simulate(columns, len(x), 0, values, levels=("global",))
    derived = {name for name, level in method.sites.derived if level == "global"}
    return {
        name: value.numpy()
        for name, value in {**values, **{k: simulated[k] for k in simulated if k in derived}}.items()
    }
