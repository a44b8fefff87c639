"""Values by name: what models and guides are run with."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hierfl.nn.functional import BROADCAST_PREFIX

State = dict[str, Tensor]
#: what tensors look like: {name: (shape, dtype)}
StateForm = dict[str, tuple[tuple[int, ...], torch.dtype]]


def form_of_state(state: Mapping[str, Tensor]) -> StateForm:
    """What these tensors look like."""
    return {name: (tuple(value.shape), value.dtype) for name, value in state.items()}


def client_view(shared: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> State:
    """What clients see: rows hide shared values of the same name, which stay visible as they were broadcast.

    Args:
        shared: {name: (*shape)}.
        rows: {name: (S, 1, *shape)}.

    Returns:
        All of them by name, and the shared ones once more under "broadcast.NAME".
    """
    return {**{f"{BROADCAST_PREFIX}{k}": v for k, v in shared.items()}, **shared, **rows}
