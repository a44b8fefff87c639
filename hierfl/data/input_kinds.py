"""What inputs are: numbers, pixels from 0 to 255, or ids; and the same picture in any type."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError, unknown

#: what inputs are: pixels are divided by 255 and standardised by channel, ids reach the network as whole numbers
Inputs = Literal["pixels", "numbers", "ids"]
#: an input of so many features is taken for a picture, as is one with two dimensions or more
PICTURE = 64
#: pictures that reach so many times beyond those of the training are on another scale
MAX_SCALE_RATIO = 8.0
#: by how much a pixel that was divided by 255 may miss a whole number, beside the rounding of its type
NEAR_WHOLE = 1e-4
#: the relative precision of bfloat16, which holds each whole number up to 255, and each of these divided by 255
COARSEST = 2**-7


def inputs_of_kind(x: np.ndarray, kind: Inputs | None, what: str) -> np.ndarray:
    """Inputs as a pool keeps them: uint8 pixels, floats, or ids in int64.

    Args:
        x: (n, *event), as by :func:`hierfl.data.raw_values.number_array`.
        kind: what they are; None by the type: uint8 with two dimensions or more are pixels, others numbers.
        what: holds them, for messages.

    Raises:
        UserError: for uint8 of which nothing says what they are, and values that are not of the kind.
    """
    if kind is None:
        if x.dtype == np.uint8 and x.ndim == 2:
            raise UserError(
                f"{what} holds uint8 of shape {x.shape}: pixels, numbers or ids? inputs='pixels', inputs='numbers' or "
                "inputs='ids' says it"
            )
        return x
    if kind not in get_args(Inputs):
        raise unknown("value of inputs", kind, get_args(Inputs))
    if kind == "numbers":
        return x.astype(np.float32) if x.dtype == np.uint8 else x
    if kind == "ids":
        return as_ids(torch.from_numpy(x), what).numpy()
    pixels = as_pixels(torch.from_numpy(x), what)
    if pixels.dtype != torch.uint8:
        raise UserError(f"{what} holds pixels that are no whole numbers from 0 to 255: round them, or inputs='numbers'")
    return pixels.numpy()


def as_ids(x: Tensor, what: str) -> Tensor:
    """Whole numbers from 0 in int64.

    Raises:
        UserError: for others.
    """
    if x.is_floating_point() and not bool((x == x.floor()).all()):
        raise UserError(f"{what} holds numbers that are not whole, and ids are whole numbers from 0")
    if x.numel() and bool((x < 0).any()):
        raise UserError(f"{what} holds {int(x.min())}, and ids are whole numbers from 0")
    return x.long()


def as_pixels(x: Tensor, what: str, precision: float = 1.2e-7) -> Tensor:
    """Pictures as uint8 from 0 to 255, whatever type they are in; as floats from 0 to 1 where they are no whole pixels.

    Args:
        x: any shape, finite.
        what: holds them, for messages.
        precision: of the type in which the user has them, relative.

    Raises:
        UserError: for a type that cannot tell pixels apart, numbers beyond 0 to 255, and where they may be on either
            scale.
    """
    if x.dtype == torch.uint8 or not x.numel():
        return x.to(torch.uint8)
    if x.dtype == torch.bool:
        raise UserError(f"{what} holds truth values, and pictures are pixels from 0 to 255: multiply by 255")
    least, most = float(x.min()), float(x.max())
    if least < 0 or most > 255:
        raise UserError(
            f"{what} reaches from {least:g} to {most:g}, and pixels are 0 to 255 (or 0 to 1 as floats): give uint8 "
            "pixels, not standardised"
        )
    if not x.is_floating_point():
        return x.to(torch.uint8)
    if precision > COARSEST:
        raise UserError(f"{what} holds floats of too few bits for pixels: give uint8 pixels")
    whole = bool((x == x.round()).all())
    if whole and most == 1:
        raise UserError(f"{what} holds floats of 0 and 1 alone, on a scale to 1 or to 255: give uint8 pixels")
    if whole:
        return x.to(torch.uint8)
    scaled = x.double() * (255 if most <= 1 else 1)
    near = NEAR_WHOLE + scaled * precision
    if bool(((scaled - scaled.round()).abs() <= near).all()):
        return scaled.round().to(torch.uint8)
    return scaled / 255


def check_scale(x: Tensor, lowest: float, highest: float) -> None:
    """Refuses pictures on another scale than those that a federation of numbers was fitted to, and truth values.

    Bytes are refused where the training inputs lie between 0 and 1: they may be pixels that were divided by 255.

    Args:
        x: (n, *event), finite.
        lowest, highest: of the training inputs.

    Raises:
        UserError: for such inputs.
    """
    if x.dtype == torch.bool and (lowest < 0 or highest > 1):
        reach = f"the training inputs reach from {lowest:g} to {highest:g}"
        raise UserError(f"inputs are truth values, and {reach}: x.astype(float) gives them as 0 and 1")
    picture = x[0].dim() > 1 or x[0].numel() >= PICTURE
    if not lowest < highest or not (picture or x.dtype == torch.uint8):
        return
    least, most = float(x.min()), float(x.max())
    if not picture and not (lowest >= 0 and highest <= 1 and most > MAX_SCALE_RATIO):
        return
    size = max(abs(lowest), abs(highest))
    trained, given = f"those of the training from {lowest:g} to {highest:g}", f"inputs reach from {least:g} to {most:g}"
    to_one, to_many = lowest >= 0 and highest <= 1, lowest >= 0 and highest > 2
    if max(-least, most) > MAX_SCALE_RATIO * size or (to_one and most > 1 and not x.is_floating_point()):
        way = "divide them by 255" if to_one and most <= 255 else "bring them to the same scale"
        raise UserError(f"{given}, and {trained}: {way}")
    if to_many and 0 < most <= 1 and least >= 0 and (x.is_floating_point() or x.dtype == torch.bool):
        raise UserError(f"{given}, and {trained}: multiply them by {highest:g}, or give whole numbers as integers")
