"""From the host's memory to a device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def send(
    values: Tensor | Sequence[int] | Sequence[float], device: torch.device | str, dtype: torch.dtype | None = None
) -> Tensor:
    """Numbers of the host on a device, without waiting for what the device still has to do.

    ``torch.tensor(..., device=...)`` and ``.to(device)`` wait. Here the host's memory has been read when this returns
    (CUDA reads what is not pinned at once), so that it may be changed; pinned memory must be left alone.
    """
    return torch.as_tensor(values, dtype=dtype).to(device, non_blocking=True)
