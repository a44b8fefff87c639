"""An architecture as json, and back: layers by their names and arguments, and values that are not trained.

A layer of torch prints how it is made: ``Conv2d(1, 6, kernel_size=(5, 5), stride=(1, 1))``. So it is written as it is
printed, and read with literals alone as arguments; nothing is evaluated. A module whose layers do not print that way is
named by its file and digest, and is handed over where the architecture is read.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import UserError
from ..adapters import LowRankHead
from ..architecture import Architecture
from ..functional import Network
from ..head import LinearHead
from ..whole_module import WholeModule
from .recipe import Recipe

#: where layers that may be named come from
LAYERS_OF = "torch.nn.modules."


def written(network: Architecture) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What is kept of an architecture: json values, and its constants by name."""
    parts = {net.name: _of_network(net) for net in network.networks}
    head = network.head
    record = {
        "spec": network.spec, "noise": network.learned or network.noise, "latents": network.latents,
        "head": {"features": head.features, "outputs": head.outputs, "bias": head.bias, "contrasts": head.contrasts},
        "networks": parts, "recipe": network.recipe, "adapters": _adapters(head),
    }  # fmt: skip
    constants = {f"{net.name}/{k}": v for net in network.networks for k, v in _constants(net).items()}
    return record, constants


def read(record: Mapping[str, Any], constants: Mapping[str, Tensor], given: Architecture | None = None) -> Architecture:
    """The architecture that :func:`written` wrote.

    Args:
        record, constants: as they were written.
        given: the same architecture, for modules that are not read from a record.

    Raises:
        UserError: for a module that has to be handed over, and one that is another than was written.
    """
    if given is not None:
        _same(record, constants, given)
        return given
    if record.get("recipe") and record["networks"]["base"]["layers"] is None:
        try:
            parts = (_of_name(name, constants) for name in ("base", "encoder"))
            made = Recipe.read(record["recipe"]).again(record["noise"], *parts)
        except (UserError, TypeError, KeyError, RuntimeError) as error:
            raise UserError(f"network {record['spec']} cannot be made again: {error}") from error
        made = replace(made, head=replace(made.head, contrasts=record["head"]["contrasts"]))
        _same(record, constants, made)
        return made
    if record.get("adapters"):
        raise UserError(
            "the network has adapters on a module of its own: load_run(folder, network=Architecture(...)) takes it"
        )
    networks = {name: _network(name, entry, constants) for name, entry in record["networks"].items()}
    return Architecture(
        networks["base"], LinearHead(**record["head"]), record["noise"], record["spec"], networks.get("encoder"),
        record["latents"],
    )  # fmt: skip


def _adapters(head: LinearHead) -> dict[str, list[int]]:
    """Shapes of each B by name; none of a head that is one layer."""
    return {key: list(size) for key, size in head.sizes.items()} if isinstance(head, LowRankHead) else {}


def _of_name(name: str, constants: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those of one network, by its own names."""
    return {key.removeprefix(f"{name}/"): v for key, v in constants.items() if key.startswith(f"{name}/")}


def _of_network(network: Network) -> dict[str, Any]:
    layers = _layers(network.module)
    return {
        "event": network.event, "layers": layers, "of": _source(network.module) if layers is None else "",
        "values": {key: list(value.shape) for key, value in _values(network.module).items()},
        "frozen": [key for key, p in network.module.named_parameters() if not p.requires_grad],
    }  # fmt: skip


def _values(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _constants(network: Network) -> dict[str, Tensor]:
    """What is kept beside the trained values; none of a network without."""
    whole: WholeModule = network.whole
    return {key: value.detach() for key, value in whole.constants.items()}


def _source(module: nn.Module) -> str:
    """The class of a module, with its file and the file's digest, where it has one."""
    cls = type(module)
    name = f"{cls.__module__}.{cls.__qualname__}"
    try:
        path = Path(inspect.getfile(cls))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except (OSError, TypeError):
        return name
    return f"{name} of {path} (sha256 {digest}...)"


def _layers(module: nn.Module) -> Any:
    """A layer as it is printed, or those of a Sequential in a list; None where they do not make it again."""
    if type(module) is nn.Sequential:
        names = [name for name, _ in module.named_children()]
        parts = [_layers(part) for part in module.children()]
        return parts if names == [str(k) for k in range(len(names))] and None not in parts else None
    text = re.sub(r"\s+", " ", repr(module))
    if any(True for _ in module.children()):
        return None
    try:
        made = _made(text)
    except (UserError, TypeError, ValueError, RuntimeError):
        return None
    shapes, again = ({k: v.shape for k, v in _values(part).items()} for part in (module, made))
    return text if type(made) is type(module) and repr(made) == repr(module) and shapes == again else None


def _made(text: str) -> nn.Module:
    """The layer that is printed so, of torch's own.

    Raises:
        UserError: for anything but a layer's name and literal arguments.
    """
    try:
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Name)
        args = [ast.literal_eval(arg) for arg in call.args]
        more = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords if word.arg}
    except (SyntaxError, ValueError, AssertionError, RecursionError, MemoryError) as error:
        raise UserError(f"{text[:80]!r} is no layer with literal arguments") from error
    cls = getattr(nn, call.func.id, None)
    if not (isinstance(cls, type) and issubclass(cls, nn.Module) and cls.__module__.startswith(LAYERS_OF)):
        raise UserError(f"{call.func.id!r} is no layer of torch.nn")
    with torch.random.fork_rng(devices=[]):  # the weights made here are never used
        made: nn.Module = cls(*args, **more)
    return made


def _module(layers: Any) -> nn.Module:
    """The layers that :func:`_layers` wrote."""
    return nn.Sequential(*map(_module, layers)) if isinstance(layers, list) else _made(layers)


def _network(name: str, entry: Mapping[str, Any], constants: Mapping[str, Tensor]) -> Network:
    if entry["layers"] is None:
        raise UserError(
            f"network {name!r} is a module of its own, {entry['of']}: "
            "load_run(folder, network=Architecture(...)) takes it"
        )
    try:
        module = _module(entry["layers"])
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"network {name!r} cannot be made from its layers: {error}") from error
    for key, p in module.named_parameters():
        p.requires_grad_(key not in entry["frozen"])
    with torch.no_grad():
        for key, value in _values(module).items():
            if (kept := constants.get(f"{name}/{key}")) is not None:
                value.copy_(kept)
    made = Network(module, name, entry["event"], "drawn")
    if (shapes := {key: list(value.shape) for key, value in _values(module).items()}) != entry["values"]:
        raise UserError(f"network {name!r} has values {shapes}, and the run's had {entry['values']}")
    return made


def _same(record: Mapping[str, Any], constants: Mapping[str, Tensor], given: Architecture) -> None:
    """Refuses another architecture than was written, by shapes and constants."""
    again, own = written(given)
    for name, entry in record["networks"].items():
        if name not in again["networks"] or again["networks"][name]["values"] != entry["values"]:
            raise UserError(f"network= has other values than network {name!r} of the run: it is another network")
    if again["head"] != record["head"]:
        raise UserError(f"network= has the head {again['head']}, and the run's was {record['head']}")
    if again["adapters"] != record.get("adapters", {}):
        raise UserError(f"network= has the adapters {again['adapters']}, and the run's were {record.get('adapters')}")
    for key, value in constants.items():
        if key not in own or not torch.equal(own[key].cpu().to(value.dtype), value):
            raise UserError(f"network= has another {key!r}, which is not trained, than the run's network")
