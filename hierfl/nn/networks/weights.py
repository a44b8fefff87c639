"""Weights of a network from a file: safetensors, or torch's own without anything but tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ...errors import UserError
from ..batch_norm_free import BATCH_NORMS, without_batch_norm

#: of batch norm; nothing reads it
COUNTER = "num_batches_tracked"


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a file, by name.

    Args:
        path: ``*.safetensors``, or a state_dict that ``torch.save`` wrote. Nothing of it is run: files that hold other
            objects than tensors are refused.

    Raises:
        UserError: for a file that is not there, or no such file.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"no file of weights {path}")
    try:
        tensors = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # readers of torch and of safetensors raise errors of many kinds
        raise UserError(f"{path} is no file of weights: a .safetensors, or a state_dict of tensors alone") from error
    if not isinstance(tensors, Mapping) or not all(
        isinstance(v, Tensor) and isinstance(k, str) for k, v in tensors.items()
    ):
        raise UserError(
            f"{path} holds no state_dict, {{name: tensor}}: torch.save(module.state_dict(), path) writes one"
        )
    return dict(tensors)


#: a file's name, or its tensors
Weights = str | Path | Mapping[str, Tensor]


def load_weights(module: nn.Module, path: Weights, spec: str) -> None:
    """Puts a file's weights into a network; those of a last layer that the network lacks are left out.

    Args:
        module: the network without its last layer.
        path: of the file; or what it holds.
        spec: the network's name, for messages.

    Raises:
        UserError: where names or shapes are those of another network.
    """
    tensors, own = path if isinstance(path, Mapping) else read_weights(path), module.state_dict()
    path = "the file" if isinstance(path, Mapping) else path
    wanted = {key for key in own if not key.endswith(COUNTER)}
    missing = sorted(wanted - tensors.keys())
    more = sorted({key for key in tensors if key not in own and not key.endswith(COUNTER)})
    if missing or len({key.rpartition(".")[0] for key in more}) > 1:
        what = f"lacks {missing[0]!r}" if missing else f"has {more[0]!r}"
        if not missing and any(key.endswith("running_mean") for key in more):
            what = f"has batch norm, whose statistics {spec},affine-norm keeps"
        raise UserError(f"{path} is of another network than {spec}: it {what}")
    for key in sorted(wanted):
        if tensors[key].shape != own[key].shape:
            shapes = f"{tuple(tensors[key].shape)}, not {tuple(own[key].shape)}"
            raise UserError(f"{path} is of another network than {spec}: its {key!r} has shape {shapes}")
        if not tensors[key].isfinite().all():
            raise UserError(f"{path} has numbers in {key!r} that are not finite")
    module.load_state_dict({key: tensors.get(key, value) for key, value in own.items()})


def has_batch_norm(module: nn.Module) -> bool:
    """Whether there is any in it."""
    return any(isinstance(part, BATCH_NORMS) for part in module.modules())


def with_weights(module: nn.Module, path: Weights | None, norm: str, spec: str) -> nn.Module:
    """The network with a file's weights, and what it normalises by.

    Args:
        module: as its name says.
        path: of weights of the network with ``norm="group"`` or of it as it is named; None for none.
        norm: "batch" leaves batch norm as it is; "group" puts group norm there; "affine" normalises by the statistics
            of the file's batch norm.
        spec: the network's name, for messages.

    Raises:
        UserError: for statistics that no file has; see :func:`load_weights`.
    """
    if norm != "batch" and not has_batch_norm(module):
        raise UserError(f"network {spec} has no batch norm that {norm}-norm could replace")
    if norm == "affine":
        if path is None:
            raise UserError("affine-norm is by the statistics of a file's batch norm: weights=FILE")
        load_weights(module, path, spec)
        return without_batch_norm(module, "affine")
    module = without_batch_norm(module, "group") if norm == "group" else module
    if path is not None:
        load_weights(module, path, spec)
    return module
