"""hierfl: hierarchical-Bayesian personalised federated learning, written as Pyro models.

The ground floor: data at J places, networks that may carry a client dimension, plates, noise, metrics, pictures.
It knows no method. Heavy imports happen when a name is first used, so that ``import hierfl`` is instant.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .data.batch import Batch
    from .data.federation import Federation
    from .errors import UserError

__version__ = "0.1.0"
__all__ = ["Batch", "Federation", "UserError", "__version__"]

_HOME = {"Batch": "data.federation", "Federation": "data.federation", "UserError": "errors"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"hierfl.{_HOME[name]}"), name)
    raise AttributeError(f"module 'hierfl' has no attribute {name!r}")
