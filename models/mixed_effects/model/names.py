"""Names of shared values: learned ones are "effects.NAME", others "held.NAME"."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from hierfl.inference.state import State

#: counts of rows by quantile residuals, among a method's sums
RESIDUALS = "residuals"


def short(shared: Mapping[str, Tensor]) -> State:
    """Shared values by their short names, learned or held."""
    return {k.partition(".")[2]: v for k, v in shared.items() if k.startswith(("effects.", "held."))}


def held(shared: Mapping[str, Tensor]) -> State:
    """What is not learned, by short names."""
    return {k.removeprefix("held."): v for k, v in shared.items() if k.startswith("held.")}
