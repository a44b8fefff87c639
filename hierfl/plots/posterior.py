"""The figures of an InferenceData: ArviZ's own plots where they exist.

They take what ``run.posterior()`` gives or ``az.from_netcdf("posterior.nc")`` reads. Of a client's many numbers one is
shown, by default the one that the figure is about: :func:`~hierfl.plots.posterior_numbers.most_variable` or
:func:`~hierfl.plots.posterior_numbers.worst_mixed`; another is asked for as
``which=("b", {"client": "s3", "b_dim_0": 1})``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..arviz_data import dataset, gathered, group_names
from ..arviz_io import BY_ROW
from . import registry
from .posterior_numbers import Posterior


def panels(data: Any) -> dict[str, Callable[[Any], Any]]:
    """The figures that an InferenceData allows, by name, each a function of an axis."""
    return registry.panels("posterior", Posterior(_with_response(data)))


def _with_response(data: Any) -> Any:
    """The same, where one number is observed by row with that number called y, whatever the model calls it."""
    groups = {group: dataset(data, group) for group in group_names(data)}
    by_row = [group for group in BY_ROW if group in groups]
    names = {name for group in by_row for name, value in groups[group].items() if value.dims[-1:] == ("obs",)}
    if "y" in names or len(names) != 1:
        return data
    (name,) = names
    renamed = {group: groups[group].rename({name: "y"}) for group in by_row if name in groups[group]}
    for group in renamed.values():
        group["y"] = group["y"].assign_attrs(long_name=name)
    return gathered(groups | renamed, data.attrs)
