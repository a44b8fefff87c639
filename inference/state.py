"""Values by name: what models and guides are run with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from hierfl.nn.functional import BROADCAST_PREFIX

State = dict[str, Tensor]
#: what tensors look like: {name: (shape, dtype)}
StateForm = dict[str, tuple[tuple[int, ...], torch.dtype]]

#: numbers of a tensor that costs more to ask by itself than to copy
MAX_COPIED_NUMBERS = 4096


def form_of_state(state: Mapping[str, Tensor]) -> StateForm:
    """What these tensors look like."""
    return {name: (tuple(value.shape), value.dtype) for name, value in state.items()}


def all_finite(values: Iterable[Tensor], device: torch.device) -> Tensor:
    """Whether all numbers of some tensors are finite, () on a device; small tensors are asked together."""
    asked: dict[torch.device, list[Tensor]] = {}
    finite = torch.ones((), dtype=torch.bool, device=device)
    for value in values:
        if value.numel() > MAX_COPIED_NUMBERS:
            finite = finite & value.isfinite().all().to(device)
        else:
            asked.setdefault(value.device, []).append(value.flatten())
    for small in asked.values():
        finite = finite & torch.cat(small).isfinite().all().to(device)
    return finite


def client_view(shared: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> State:
    """What clients see: rows hide shared values of the same name, which stay visible as they were broadcast.

    Args:
        shared: {name: (*shape)}.
        rows: {name: (S, 1, *shape)}.

    Returns:
        All of them by name, and the shared ones once more under "broadcast.NAME".
    """
    return {**{f"{BROADCAST_PREFIX}{k}": v for k, v in shared.items()}, **shared, **rows}
