"""hierfl: hierarchical-Bayesian personalised federated learning, written as Pyro models.

The ground floor: data of J clients, networks that may carry a client dimension, plates, noise, metrics, pictures.
It knows no method. Heavy imports happen when a name is first used, so that ``import hierfl`` is instant.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .threads import wait_briefly

if TYPE_CHECKING:
    from .data.batch import Batch
    from .data.federation import Federation
    from .data.reading.read import read_table
    from .errors import UserError
    from .experiments.federate.study_fit import load_study
    from .experiments.functions import ablate, compare, report, tune
    from .experiments.papers.make_table import table
    from .experiments.run_folder.in_python import fit
    from .experiments.run_folder.load import load_run
    from .inference import Method, Run
    from .models.any_model.fit_model import fit_model
    from .models.estimators.classifier import HierarchicalClassifier
    from .models.estimators.regressor import HierarchicalRegressor
    from .models.mixed_effects.mixed_model import load_mixed_model, mixed_model

__version__ = "0.1.0"
__all__ = [
    "Batch",
    "Federation",
    "HierarchicalClassifier",
    "HierarchicalRegressor",
    "Method",
    "Run",
    "UserError",
    "__version__",
    "ablate",
    "compare",
    "fit",
    "fit_model",
    "load_mixed_model",
    "load_run",
    "load_study",
    "mixed_model",
    "read_table",
    "report",
    "table",
    "tune",
]

#: what is lent from the rooms, and which of them has it; from upper floors, too: a door for users, not for this floor
_ROOMS = {
    "Batch": "data.batch",
    "Federation": "data.federation",
    "HierarchicalClassifier": "models.estimators.classifier",
    "HierarchicalRegressor": "models.estimators.regressor",
    "Method": "inference",
    "Run": "inference",
    "UserError": "errors",
    "ablate": "experiments.functions",
    "compare": "experiments.functions",
    "fit": "experiments.run_folder.in_python",
    "fit_model": "models.any_model.fit_model",
    "load_mixed_model": "models.mixed_effects.mixed_model",
    "load_run": "experiments.run_folder.load",
    "load_study": "experiments.federate.study_fit",
    "mixed_model": "models.mixed_effects.mixed_model",
    "read_table": "data.reading.read",
    "report": "experiments.functions",
    "table": "experiments.papers.make_table",
    "tune": "experiments.functions",
}

wait_briefly()


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return getattr(import_module(f"hierfl.{_ROOMS[name]}"), name)
    raise AttributeError(f"module 'hierfl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
