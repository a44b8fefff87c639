"""Copies of tensors between the host's memory and a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import torch
from torch import Tensor


def send(
    values: Tensor | Sequence[int] | Sequence[float], device: torch.device | str, dtype: torch.dtype | None = None
) -> Tensor:
    """Numbers of the host on a device, without waiting for what the device still has to do.

    ``torch.tensor(..., device=...)`` and ``.to(device)`` wait. This returns when CUDA has read the host's memory,
    which may be changed from then on. Pinned memory is read later, and must be left alone.
    """
    return torch.as_tensor(values, dtype=dtype).to(device, non_blocking=True)


@cache
def _stream(device: torch.device, to_device: bool) -> torch.cuda.Stream:
    """The stream in which a GPU copies while it computes: from the host, or back."""
    return torch.cuda.Stream(device)


class Sending:
    """Values of the host, in pinned memory, on their way to a GPU, which computes what it was asked before meanwhile.

    Elsewhere they are sent as by :func:`send`.

    Args:
        values: of the host.
        device: where they are wanted.
    """

    def __init__(self, values: Mapping[str, Tensor], device: torch.device) -> None:
        self._device = device
        self._arrived: torch.cuda.Event | None = None
        if device.type != "cuda":
            self._values = {k: send(v, device) for k, v in values.items()}
            return
        copying = _stream(device, there=True)
        with torch.cuda.stream(copying):
            self._values = {k: send(v, device) for k, v in values.items()}
        self._arrived = copying.record_event()

    def wait(self) -> dict[str, Tensor]:
        """The values: what the device is asked next waits for them, the host does not."""
        if self._arrived is not None:
            computing = torch.cuda.current_stream(self._device)
            computing.wait_event(self._arrived)
            for value in self._values.values():
                value.record_stream(computing)  # their memory belongs to the stream that copied
        return self._values


class Receiving:
    """Values of a device on their way to the host. A GPU computes what it is asked next meanwhile.

    Args:
        values: as the device has them once it has done what it was asked.
    """

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        self._arrived: torch.cuda.Event | None = None
        device = next((v.device for v in values.values()), torch.device("cpu"))
        if device.type != "cuda":
            self._values = {k: v.cpu() for k, v in values.items()}
            return
        copying = _stream(device, there=False)
        copying.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(copying):
            self._values = {
                k: torch.empty(v.shape, dtype=v.dtype, pin_memory=True).copy_(v, non_blocking=True)
                for k, v in values.items()
            }
        for value in values.values():
            value.record_stream(copying)
        self._arrived = copying.record_event()

    def wait(self) -> dict[str, Tensor]:
        """The values, once they are there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._values
