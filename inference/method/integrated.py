"""Latents over which predictions integrate in closed form (see :mod:`.capabilities`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable


@runtime_checkable
class IntegratesLatents(Protocol):
    """A method with latents over which predictions integrate in closed form; see :func:`integrated`."""

    integrated: ClassVar[Sequence[str]]


def integrated(method: object) -> Sequence[str]:
    """Latents that averaged predictions put at their mean, while the others are drawn; none by default.

    The input itself informs about such a latent, and the joint density of input and response is linear in it: the
    predictive at its mean is exact, and the average over its draws is not. Draws of the posterior include it.
    """
    return method.integrated if isinstance(method, IntegratesLatents) else ()
