"""What a reader has to know of the guide's marginals, a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from hierfl.inference.evaluation.fitted import Fitted

from ..names import SHAPE
from ..printed import number_names
from .transform import Marginals

if TYPE_CHECKING:
    from ..plain import GaussianModel


def shape_notes(fitted: Fitted) -> list[str]:
    """The largest skew and tail of the globals; nothing where the guide is Gaussian."""
    shared = fitted.shared
    if Marginals.read(shared) is None:
        return []
    sites = cast("GaussianModel", fitted.method).sites.globals
    names = [name for latent in sites for name in number_names(latent.name, latent.free)]
    largest = []
    for what, values in zip(("skew", "tail"), shared[SHAPE][2:].tolist(), strict=True):
        index = max(range(len(values)), key=lambda k: abs(values[k]))
        largest.append(f"{what} {values[index]:+.2f} ({names[index]})")
    return [f"the guide has marginals by sinh and arcsinh, on unconstrained numbers: largest {' and '.join(largest)}"]
