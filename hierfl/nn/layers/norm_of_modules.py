"""Batch norm anywhere in a module, such as in a ResNet, that is called with one client's weights."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping

from torch import Tensor, nn

from .batch_norm import LAYER_VALUES, NORMS, Moments, Norm, client_norm, running_norm
from .registry import kind_of


def norms_of(module: nn.Module) -> dict[str, Norm]:
    """A module's batch norm by prefix ("layer1.0.bn1."), where running statistics and a momentum make it known.

    One whose weights are constants is left out: beside a network that stays, its statistics would not. So is one that a
    module has in two places.
    """
    parts = [(key, part) for key, part in module.named_modules(remove_duplicate=False) if isinstance(part, NORMS)]
    often = Counter(id(part) for _, part in parts)
    return {
        f"{key}." if key else "": part
        for key, part in parts
        if often[id(part)] == 1 and kind_of(part) is not None and all(p.requires_grad for p in part.parameters())
    }


class NormOfOne(nn.Module):
    """Batch norm of one client's examples: by its running statistics, or by the batch, whose moments it then keeps.

    Args:
        layer: torch's, whose values it has, under the same names.
    """

    def __init__(self, layer: Norm) -> None:
        super().__init__()
        self.eps = layer.eps
        for key in LAYER_VALUES:
            value = getattr(layer, key)
            if key in dict(layer.named_parameters()) or value is None:
                self.register_parameter(key, value)
            else:
                self.register_buffer(key, value)
        #: what it has seen since it was set to an empty list; None for by running statistics
        self.seen: list[Moments] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Computes the output for x (n, C, ...)."""
        own = {key: value for key in LAYER_VALUES if (value := getattr(self, key)) is not None}
        if self.seen is None:
            return running_norm(x[None], own, self.eps)[0]
        y, moments = client_norm(x[None], own, self.eps, None)
        self.seen.append(moments)
        return y[0]


def with_own_norms(module: nn.Module, norms: Mapping[str, Norm]) -> tuple[nn.Module, dict[str, NormOfOne]]:
    """The module with :class:`NormOfOne` instead of its batch norm, by prefix; all values are those of the module.

    Args:
        module: any.
        norms: of :func:`norms_of`.
    """
    values = (*module.parameters(), *module.buffers())
    made = copy.deepcopy(module, {id(value): value for value in values})
    own = {prefix: NormOfOne(layer) for prefix, layer in norms.items()}
    for prefix, layer in own.items():
        if not prefix:
            return layer, own
        parent, _, key = prefix.removesuffix(".").rpartition(".")
        setattr(made.get_submodule(parent), key, layer)
    return made, own
