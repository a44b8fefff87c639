"""The name of a network: kind, widths, options."""

from __future__ import annotations

import torch
from torch import nn

from ...errors import UserError, unknown
from .registry import KINDS, NETWORKS, NetworkKind

#: options that are numbers between 0 and 1, and what they are; a kind says which of them it takes
OPTIONS = {"dropout": "a probability", "leaky": "a slope"}
NETWORKS["NETWORK,dropout=P"] = "mlp or cnn with dropout after each hidden layer, where the network is trained"
NETWORKS["NETWORK,leaky=A"] = "LeakyReLU of slope A instead of ReLU"


def module_of(spec: str, event: torch.Size) -> tuple[nn.Sequential, NetworkKind]:
    """A network for inputs of this shape, and its kind.

    Raises:
        UserError: for a name that cannot be read or does not suit the inputs.
    """
    spec, options = options_of(spec)
    kind, *parts = spec.split(":")
    if kind not in KINDS:
        raise unknown("network", spec, NETWORKS)
    how = KINDS[kind]
    try:
        widths = [[int(w) for w in part.split(",")] for part in parts]
    except ValueError:
        widths = []
    if len(widths) != how.parts or any(w < 1 for ws in widths for w in ws):
        raise UserError(f"network {kind} is written {how.written}, with whole numbers above zero; got {spec}")
    if how.images and len(event) != 3:
        raise UserError(f"network {kind} needs images (channels, height, width), and an input is {tuple(event)}")
    slope = options.get("leaky")

    def relu() -> nn.Module:
        return nn.ReLU() if slope is None else nn.LeakyReLU(slope)

    return how.make(event, widths, relu, options.get("dropout", 0.0)), how


def options_of(spec: str) -> tuple[str, dict[str, float]]:
    """A network's name without its options, and those by name."""
    first = min((spec.find(f",{name}=") for name in OPTIONS if f",{name}=" in spec), default=len(spec))
    options: dict[str, float] = {}
    for option in filter(None, spec[first:].split(",")):
        name, _, text = option.partition("=")
        if name not in OPTIONS:
            raise unknown("option of a network", option, (f"{name}=NUMBER" for name in OPTIONS))
        kinds = [kind for kind, how in KINDS.items() if name in how.options]
        if spec.partition(":")[0] not in kinds:
            raise UserError(f"{name} is for {', '.join(kinds)}, not for {spec}")
        if name in options:
            raise UserError(f"{name} is said twice in {spec}")
        try:
            options[name] = float(text)
        except ValueError:
            options[name] = -1.0
        if not 0 < options[name] < 1:
            raise UserError(f"{name} is {OPTIONS[name]} between 0 and 1, as in mlp:100,{name}=0.5; got {spec}")
    return spec[:first], options
