"""Raw inputs as a model sees them."""

from __future__ import annotations

import torch
from torch import Tensor


def model_inputs(x: Tensor, mean: Tensor | None, std: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Raw inputs (..., *event) as a model sees them: bytes over 255, then standardised by what there is."""
    scale = 255 if x.dtype == torch.uint8 else 1
    if mean is None or std is None:
        return x.to(dtype) / scale if scale > 1 else x.to(dtype)
    if x.dtype == torch.float64:  # their mean may be far beyond their sd, as of dates in seconds
        return x.sub(mean.double()).div_(std.double()).to(dtype)
    x = x.to(dtype, copy=True)  # in place from here: images are many
    return x.sub_(scale * mean.to(dtype)).div_(scale * std.to(dtype))
