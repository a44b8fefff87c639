"""Values by name: what models and guides are run with."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from hierfl.nn.functional import BROADCAST_PREFIX

State = dict[str, Tensor]


def client_view(shared: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> State:
    """What clients see: rows hide shared values of the same name, which stay visible as they were broadcast.

    Args:
        shared: {name: (*shape)}.
        rows: {name: (S, 1, *shape)}.

    Returns:
        All of them by name, and the shared ones once more under "broadcast.NAME".
    """
    return {**{f"{BROADCAST_PREFIX}{k}": v for k, v in shared.items()}, **shared, **rows}
