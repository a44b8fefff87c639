"""The precision of matrix products while a float32 fit trains."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Literal

import torch
from torch import Tensor

#: "full": as the numbers are. "tf32": CUDA devices read 10 of the 23 bits of what they multiply. "bf16": networks
#: multiply and answer in bfloat16, of 7 bits, adding up in float32; values, densities and steps stay in float32.
Precision = Literal["full", "tf32", "bf16"]

_LOW: ContextVar[torch.dtype | None] = ContextVar("low", default=None)


@contextlib.contextmanager
def precision(name: Precision) -> Iterator[None]:
    """Inside, products are computed so; afterwards as before."""
    cudnn, matmul = torch.backends.cudnn, torch.get_float32_matmul_precision()
    low, convolutions = _LOW.set(torch.bfloat16 if name == "bf16" else None), cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    cudnn.allow_tf32 = name == "tf32"  # torch allows it where nothing is said
    try:
        yield
    finally:
        _LOW.reset(low)
        torch.set_float32_matmul_precision(matmul)
        cudnn.allow_tf32 = convolutions


def networks_output(compute: Callable[[], Tensor], device: torch.device) -> Tensor:
    """What a network computes on this device, as :func:`precision` says."""
    low = _LOW.get()
    if low is None:
        return compute()
    with torch.autocast(device.type, low, cache_enabled=False):
        return compute().float()


def as_multiplied(*factors: Tensor) -> tuple[Tensor, ...]:
    """Factors of a network's product whose derivative is written by hand, as torch multiplies those of others."""
    low = _LOW.get()
    return factors if low is None else tuple(v.to(low) for v in factors)
