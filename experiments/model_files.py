"""Model files: Python files with a plain Pyro model of a batch and no method."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hierfl.errors import UserError

if TYPE_CHECKING:
    from hierfl.models.any_model.model_file import GuidedModel, ModelMethod

#: what a file's model is called where nothing is said
USUAL = "model"
#: what a guide of it is called, where a file has one
GUIDE = "guide"


def model_method(module: ModuleType, path: Path, name: str | None) -> type[ModelMethod] | type[GuidedModel] | None:
    """The method of a file's model; None for a file that has no model.

    Models are functions of one argument; names that begin with an underscore are helpers'. A function ``guide`` is the
    model's guide.

    Args:
        module: the file, which was run.
        path: of the file.
        name: of the model; None for ``model``, or the only one.

    Raises:
        UserError: for a name that the file does not have, or several models of which none is said.
    """
    functions = {key: value for key, value in vars(module).items() if _is_model(module, key, value)}
    if not functions:
        return None
    if name is not None and name not in functions:
        raise UserError(f"{path} has no model {name!r}; it has {', '.join(functions)}")
    if name is None:
        if USUAL not in functions and len(functions) > 1:
            raise UserError(f"{path} has several functions of one argument, {', '.join(functions)}: say --model NAME")
        name = USUAL if USUAL in functions else next(iter(functions))
    from hierfl.models.any_model.model_file import method_of

    guide = vars(module).get(GUIDE)
    if guide is not None and not callable(guide):
        raise UserError(f"{path} has a {GUIDE!r} that is no function: a guide is a function of a batch")
    return method_of(functions[name], module.__name__, path.stem if name == USUAL else f"{path.stem}:{name}", guide)


def _is_model(module: ModuleType, name: str, value: Any) -> bool:
    """Whether it is a function of the file's own with one argument that must be given, or any callable ``model``."""
    if inspect.isclass(value) or not callable(value) or name.startswith("_") or name == GUIDE:
        return False
    if name == USUAL:
        return True
    if not inspect.isfunction(value) or value.__module__ != module.__name__:
        return False
    parameters = inspect.signature(value).parameters.values()
    return len([p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]) == 1
