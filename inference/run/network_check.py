"""Whether a network fits the data, before anything is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hierfl.data.batch import Batch
from hierfl.data.federation import Federation
from hierfl.errors import UserError
from hierfl.nn.architecture import Architecture
from hierfl.nn.functional import Network
from hierfl.plurals import counted

from ..method.capabilities import is_tabular

if TYPE_CHECKING:
    from ..method.base import Method
from ..state import State


@torch.no_grad()
def check_network(method: Method, federation: Federation, template: Batch, weights: State) -> None:
    """Refuses a network that does not take the inputs, or whose head does not give what the responses need.

    Args:
        method: whose network.
        federation: the data, or their outline.
        template: one row of masked zeros, (1, 1, *event).
        weights: what the networks begin with.

    Raises:
        UserError: where they do not fit together.
    """
    if is_tabular(method):
        return
    network, x = method.network, template.x
    _check_outputs(network, federation)
    own = {k: v.detach().to(x.device, template.n.dtype) for k, v in weights.items()}
    for net in network.networks:
        check_ids(net, federation.x)
    features = x
    for net in network.networks:
        if net is network.base and network.encoder is not None:
            features = features[..., : network.latents]
        features = _output(net, own, features)
    wanted, shape = network.head.inputs, tuple(features.shape[2:])
    if shape != (wanted,):
        raise UserError(
            f"the base network gives {shape} for one input, and the head takes ({wanted},): end it with nn.Flatten() "
            f"or a mean, or make the head LinearHead({features[0, 0].numel()}, {network.head.outputs})"
        )


def check_ids(network: Network, x: Tensor) -> None:
    """Refuses ids beyond a network's embeddings.

    Args:
        network: that reads them.
        x: raw inputs, of any shape; those that are no whole numbers pass.

    Raises:
        UserError: for such ids.
    """
    rows = [part.num_embeddings for part in network.module.modules() if isinstance(part, nn.Embedding)]
    if not rows or x.is_floating_point() or not x.numel():
        return
    largest = int(x.max())
    if largest >= max(rows):
        raise UserError(
            f"ids reach {largest}, and nn.Embedding has {counted(max(rows), 'row')}: ids are 0 to {max(rows) - 1}"
        )


def _check_outputs(network: Architecture, federation: Federation) -> None:
    outputs, needed = network.head.outputs, federation.classes if federation.task == "classification" else 1
    remedy = "architecture(spec, federation) makes one that fits, as does"
    if outputs != needed:
        what = counted(needed, "class") if federation.task == "classification" else "a regression, of 1 output"
        raise UserError(
            f"the network's head has {outputs} output{'s' * (outputs != 1)}, and the federation {what}: {remedy} "
            f"LinearHead({network.head.features}, {needed})"
        )
    if federation.task == "classification" and network.noise is not None:
        raise UserError(
            f"the network has noise={network.noise}, a regression's, and the federation labels: {remedy} noise=None"
        )
    # A standard deviation that is learned is no number yet.
    if federation.task == "regression" and not network.learned and network.noise is None:
        raise UserError(
            f"the network has noise=None, a classification's, and the federation responses: {remedy} noise=1.0"
        )


def _output(network: Network, values: State, x: Tensor) -> Tensor:
    """The output for one input, (1, 1, ...)."""
    weights = network.parameters_from(values)
    try:
        if network.chain is None:
            network.whole.check(weights, x[0])
        return network.apply(weights, x)
    except UserError:
        raise
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError) as error:
        if x.is_floating_point() and any(isinstance(part, nn.Embedding) for part in network.module.modules()):
            way = "nn.Embedding reads ids, and the inputs are numbers: Federation.from_arrays(..., inputs='ids')"
            raise UserError(f"network {network.name!r} cannot take these inputs: {way}") from error
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(
            f"network {network.name!r} cannot take {str(x.dtype).removeprefix('torch.')} inputs of shape "
            f"(n, {', '.join(map(str, x.shape[2:]))}): {why}"
        ) from error
