"""Names of shared values: learned ones are "effects.NAME", others "held.NAME"."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from hierfl.inference.state import State

#: counts of rows by quantile residuals, among a method's sums
RESIDUALS = "residuals"


def by_short_name(shared: Mapping[str, Tensor]) -> State:
    """All shared values, learned or fixed, by NAME alone."""
    return {k.partition(".")[2]: v for k, v in shared.items() if k.startswith(("effects.", "held."))}


def fixed_values(shared: Mapping[str, Tensor]) -> State:
    """Shared values that are not learned, by NAME alone."""
    return {k.removeprefix("held."): v for k, v in shared.items() if k.startswith("held.")}
