"""The figures of an InferenceData: ArviZ's own plots where they exist.

They take what ``run.posterior()`` gives or ``az.from_netcdf("posterior.nc")`` reads. Of a client's many numbers one is
shown, by default the one that the figure is about: :func:`~hierfl.plots.posterior_numbers.most_variable` or
:func:`~hierfl.plots.posterior_numbers.worst_mixed`; another is asked for as
``which=("b", {"client": "s3", "b_dim_0": 1})``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import registry
from .posterior_numbers import Posterior


def panels(data: Any) -> dict[str, Callable[[Any], Any]]:
    """The figures that an InferenceData allows, by name, each a function of an axis."""
    return registry.panels("posterior", Posterior(data))
