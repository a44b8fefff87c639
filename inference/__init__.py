"""The first floor: how to fit any model. It knows no method."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .compression import Compressed, Quantise, Sparsify
    from .exchange import ConfidenceWeighted, Gradient, SampleWeighted
    from .langevin import Langevin
    from .method import ClosedForm, Method, setting
    from .result import Run
    from .run import fit
    from .svi import SVI

__all__ = [
    "SVI",
    "ClosedForm",
    "Compressed",
    "ConfidenceWeighted",
    "Gradient",
    "Langevin",
    "Method",
    "Quantise",
    "Run",
    "SampleWeighted",
    "Sparsify",
    "fit",
    "setting",
]

_HOME = {
    "SVI": "svi",
    "ClosedForm": "method",
    "Compressed": "compression",
    "ConfidenceWeighted": "exchange",
    "Gradient": "exchange",
    "Langevin": "langevin",
    "Method": "method",
    "Quantise": "compression",
    "Run": "result",
    "SampleWeighted": "exchange",
    "Sparsify": "compression",
    "fit": "run",
    "setting": "method",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"hierfl.inference.{_HOME[name]}"), name)
    raise AttributeError(f"module 'hierfl.inference' has no attribute {name!r}")
