"""The first floor: how to fit any model. It knows no method."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .local.closed_form import ClosedForm as ClosedForm
    from .local.langevin.step import Langevin as Langevin
    from .local.svi import SVI as SVI
    from .messages.codec import Quantise as Quantise
    from .messages.codec import Sparsify as Sparsify
    from .messages.pipeline import Codec as Codec
    from .method.about import About as About
    from .method.base import Method as Method
    from .method.schedule import Schedule as Schedule
    from .method.settings import setting as setting
    from .run.fit import fit as fit
    from .run.result import Run as Run
    from .server.rules.gradient import Gradient as Gradient
    from .server.rules.means import PrecisionWeightedMean as PrecisionWeightedMean
    from .server.rules.means import SampleWeighted as SampleWeighted

#: what is lent from the rooms, and which of them has it: nothing is imported before it is asked for
_ROOMS = {
    "About": "method.about",
    "Codec": "messages.pipeline",
    "ClosedForm": "local.closed_form",
    "Gradient": "server.rules.gradient",
    "Langevin": "local.langevin.step",
    "Method": "method.base",
    "PrecisionWeightedMean": "server.rules.means",
    "Quantise": "messages.codec",
    "Run": "run.result",
    "SVI": "local.svi",
    "SampleWeighted": "server.rules.means",
    "Schedule": "method.schedule",
    "Sparsify": "messages.codec",
    "fit": "run.fit",
    "setting": "method.settings",
}
__all__ = list(_ROOMS)


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return getattr(import_module(f"hierfl.inference.{_ROOMS[name]}"), name)
    raise AttributeError(f"module 'hierfl.inference' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
