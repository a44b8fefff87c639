"""hierfl: hierarchical-Bayesian personalised federated learning, written as Pyro models.

The ground floor: data of J clients, networks that may carry a client dimension, plates, noise, metrics, pictures.
It knows no method. Heavy imports happen when a name is first used, so that ``import hierfl`` is instant.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .data.batch import Batch
    from .data.federation import Federation
    from .data.reading.read import read_table
    from .errors import UserError
    from .experiments.federate.study_fit import load_study
    from .experiments.papers.make_table import table
    from .inference import Method, Run, fit
    from .models.any_model.fit_model import fit_model
    from .models.mixed_effects.mixed_model import load_mixed_model, mixed_model

__version__ = "0.1.0"
__all__ = [
    "Batch",
    "Federation",
    "Method",
    "Run",
    "UserError",
    "__version__",
    "fit",
    "fit_model",
    "load_mixed_model",
    "load_study",
    "mixed_model",
    "read_table",
    "table",
]

#: what is lent from the rooms, and which of them has it; from upper floors, too: a door for users, not for this floor
_ROOMS = {
    "Batch": "data.batch",
    "Federation": "data.federation",
    "Method": "inference",
    "Run": "inference",
    "UserError": "errors",
    "fit": "inference",
    "fit_model": "models.any_model.fit_model",
    "load_mixed_model": "models.mixed_effects.mixed_model",
    "load_study": "experiments.federate.study_fit",
    "mixed_model": "models.mixed_effects.mixed_model",
    "read_table": "data.reading.read",
    "table": "experiments.papers.make_table",
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return getattr(import_module(f"hierfl.{_ROOMS[name]}"), name)
    raise AttributeError(f"module 'hierfl' has no attribute {name!r}")
