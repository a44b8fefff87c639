"""Parameters of a model: ``pyro.param`` and those of modules, which everyone shares; and points of each client.

A client's is ``pyro.param(name, value, event_dim=k)`` within the plate of clients: a value of k dimensions for each.

A parameter has no prior. A fit gives it a value as it gives one to a latent, by the message of :func:`pyro.param`; of a
module that ``pyro.module`` names, or that is the model itself, those values replace its own for one run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pyro
import torch
from torch import Tensor, nn

from hierfl.data.column_batch import ColumnBatch
from hierfl.errors import UserError

from .levels import CLIENT, DATA, Model


def run(model: Model, batch: ColumnBatch) -> None:
    """Runs a model once; what is registered as a parameter is forgotten, and modules are left as they were."""
    with ExitStack() as stack:
        stack.enter_context(pyro.get_param_store().scope())
        stack.enter_context(_modules_by_messages(stack))
        if isinstance(model, nn.Module):
            pyro.module("", model)
        model(batch)


@contextmanager
def _modules_by_messages(stack: ExitStack) -> Iterator[None]:
    """Modules whose parameters come by messages while this lasts: Pyro's own keep those that they have."""

    def module(name: str, nn_module: nn.Module, update_module_params: bool = False) -> nn.Module:
        _give(stack, name, nn_module)
        return nn_module

    before = pyro.module
    try:
        pyro.module = pyro.primitives.module = module
        yield
    finally:
        pyro.module = pyro.primitives.module = before


def _give(stack: ExitStack, name: str, module: nn.Module) -> None:
    values: dict[int, Tensor] = {}
    for key, parameter in list(module.named_parameters(remove_duplicate=False)):
        if not parameter.requires_grad or key.endswith("_unconstrained"):  # that of a PyroParam sends a message
            continue
        if id(parameter) not in values:
            value = pyro.param(f"{name}.{key}" if name else key, parameter)
            values[id(parameter)] = value.to(torch.get_default_dtype())  # a module is mostly made in single precision
        path, _, last = key.rpartition(".")
        parameters = module.get_submodule(path)._parameters
        stack.callback(parameters.__setitem__, last, parameter)
        parameters[last] = values[id(parameter)]  # type: ignore[assignment]


def is_personal(message: dict[str, Any]) -> bool:
    """Whether a parameter says, by ``event_dim``, that each client has its own."""
    return message["kwargs"].get("event_dim") is not None and _within(message, CLIENT)


def clients_axis(message: dict[str, Any]) -> int:
    """The dimension of the clients in a personal parameter's value; that of rows follows, and has one entry."""
    return len(message["value"].shape) - int(message["kwargs"]["event_dim"]) - 2


def _within(message: dict[str, Any], plate: str) -> bool:
    return any(frame.name == plate for frame in message["cond_indep_stack"])


def refuse_own(name: str, message: dict[str, Any], clients: int) -> None:
    """A parameter of rows, and one of clients that does not have a value for each.

    Args:
        name: its.
        message: of a run.
        clients: of that run.

    Raises:
        UserError: for these.
    """
    event_dim = message["kwargs"].get("event_dim")
    if event_dim is not None and _within(message, DATA):
        raise UserError(
            f"pyro.param {name!r} has a number for each row, and no prior: write it as pyro.sample with one"
        )
    if not is_personal(message):
        return
    shape = shape_of(message)
    if shape is None:
        raise UserError(
            f"pyro.param {name!r} of a module is everyone's: leave event_dim out, or write pyro.param in the model"
        )
    own_shape = shape[len(shape) - event_dim :]
    if len(shape) < event_dim + 2 or shape[len(shape) - event_dim - 2 : len(shape) - event_dim] != (clients, 1):
        wanted = ", ".join(["batch.num_clients", "1", *map(str, own_shape)])
        raise UserError(
            f"pyro.param {name!r} of each client has shape {shape} where the number of clients is {clients}: give it "
            f"torch.zeros({wanted}), or leave event_dim out, and it is everyone's"
        )


def shape_of(message: dict[str, Any]) -> tuple[int, ...] | None:
    """The shape of the value that a model gives to a parameter; None where it gives none."""
    given = message["args"][1:2]
    if not given:
        return None
    return tuple((given[0]() if callable(given[0]) else given[0]).shape)
