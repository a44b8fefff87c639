"""What a device has been asked to do, recorded: CUDA graphs.

A step of training is some two hundred operations, each of which the host has to issue; where a plate is small that
takes longer than to compute them. A CUDA graph issues all of them at once, on the same memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

from .errors import UserError

T = TypeVar("T")


class Recorder(Protocol):
    """What records operations."""

    def run(self, compute: Callable[[], T]) -> T:
        """Computes as it is, where recordings are made."""
        ...

    def record(self, compute: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Records without computing: what will hold the results, and what computes them.

        ``compute`` has run before, must ask the device for nothing, and is handed nothing by the host.
        """
        ...


class CudaGraphs:
    """Records CUDA graphs.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream, self._pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()

    def run(self, compute: Callable[[], T]) -> T:
        """See :class:`Recorder`."""
        # On the stream of the recordings: autograd adds up a leaf's gradient on the one that it first saw it on.
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            result = compute()
        torch.cuda.current_stream(self.device).wait_stream(self._stream)
        return result

    def record(self, compute: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """See :class:`Recorder`."""
        graph = torch.cuda.CUDAGraph()
        # Recordings share memory, since none reads what another one has left there.
        try:
            with torch.cuda.device(self.device), torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                result = compute()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise UserError(
                f"a step of this method cannot be recorded as a CUDA graph ({str(error).splitlines()[0]}): it reads "
                "numbers of the host, as a distribution does that is given a Python number where it needs a tensor"
            ) from error
        return result, graph.replay


def recorder(device: torch.device) -> Recorder:
    """What records this device's operations.

    Raises:
        UserError: for a device that is no CUDA device.
    """
    if device.type != "cuda":
        raise UserError(f"CUDA graphs need a CUDA device, not {str(device)!r}")
    return CudaGraphs(device)
