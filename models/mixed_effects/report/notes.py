"""What is to know of an effect beside its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from hierfl.inference.state import State

from ..model.equations import MixedModel
from ..search.bounds import Bound

if TYPE_CHECKING:
    import pandas as pd


def own_bounds(
    method: MixedModel, labels: list[str], values: Tensor, estimates: State, infinite: Tensor
) -> dict[str, Bound]:
    """The bounds at which the family's own numbers are, or without an end."""
    family = method.response_family
    own = family.own(method.network.fixed, estimates["beta"][None], {k: v[None] for k, v in estimates.items()})
    bounds = {}
    for name, value, without_end in zip(labels, values.tolist(), infinite.tolist(), strict=True):
        if name in own and (note := family.at_bound(name, family.end(name, value) if without_end else value)):
            bounds[name] = Bound(note, family.end(name, value))
    return bounds


def notes_of(
    method: MixedModel, table: pd.DataFrame, bounds: Mapping[str, Bound], infinite: Tensor | None
) -> list[str]:
    """What is to know of an effect; empty where nothing is, as of a posterior (``infinite`` None)."""
    fixed, notes = method.settings.prior == "fixed", []
    far = [False] * len(table) if infinite is None else infinite.tolist()
    for name, error, without_end in zip(table["effect"], table["standard_error"], far, strict=True):
        note = bounds[name].note if name in bounds else ""
        of_random = name.startswith(("sd(", "corr(")) and name != "sd(residual)"
        if fixed and of_random:
            notes.append("held")
        elif infinite is None:
            notes.append("")
        elif without_end and (of_random or not note):
            notes.append("no finite estimate: separated")
        elif name in method.network.fixed and not method.likelihood.searches_beta and not np.isfinite(error):
            notes.append(note or "standard error not identified")
        else:
            notes.append(note or ("" if np.isfinite(error) else "not identified"))
    return notes
