"""A method for each model: the class that a model file, or a function that is handed over, represents."""

from __future__ import annotations

from typing import ClassVar, cast

from hierfl.data.column_design import ColumnDesign
from hierfl.inference.method.about import About

from .method import AnyModel
from .own_guide.for_clients import ForClients
from .own_guide.method import OwnGuide
from .sites import Model


class ModelMethod(AnyModel):
    """:class:`.method.AnyModel` of one model; see :func:`method_of`."""

    model_function: ClassVar[Model]

    def __init__(self, network: ColumnDesign, **settings: object) -> None:
        super().__init__(network, type(self).model_function, **settings)


class GuidedModel(OwnGuide):
    """:class:`.own_guide.method.OwnGuide` of one model and its guide; see :func:`method_of`."""

    model_function: ClassVar[Model]
    guide_function: ClassVar[Model | ForClients]

    def __init__(self, network: ColumnDesign, **settings: object) -> None:
        super().__init__(network, type(self).model_function, type(self).guide_function, **settings)


def method_of(
    model: Model, module: str = "", name: str = "", guide: Model | ForClients | None = None
) -> type[ModelMethod] | type[GuidedModel]:
    """The method of a model.

    Args:
        model: a function of a batch.
        module: where the class belongs; the model's own where none is said.
        name: what runs and summaries call it; the function's where none is said.
        guide: its user's own; None for Gaussians.
    """
    called = name or getattr(model, "__name__", type(model).__name__)
    members = {
        "about": About(name=called, what="a plain Pyro model with a client plate"),
        "model_function": staticmethod(model),
        "__module__": module or getattr(model, "__module__", __name__) or __name__,
        "__doc__": model.__doc__,
    }
    if guide is None:
        return type("ModelMethod", (ModelMethod,), members)
    return type("GuidedModel", (GuidedModel,), {**members, "guide_function": staticmethod(cast("Model", guide))})
