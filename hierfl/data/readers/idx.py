"""Arrays of idx files (the MNIST family). Sizes are checked before memory is taken."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np

from .contents import read_bytes
from .limits import reading


def read_idx(path: Path | str, dimensions: int) -> np.ndarray:
    """Bytes in the format of MNIST: a magic number, big-endian sizes, the bytes.

    Raises:
        UserError: for another format or number of dimensions, or sizes that do not fit the file.
    """
    data = read_bytes(path, "an idx file of MNIST's format")
    head = 4 + 4 * dimensions
    with reading(path, "idx file of MNIST's format"):
        if data[:4] != bytes([0, 0, 8, dimensions]):
            raise ValueError(f"it does not begin as bytes of {dimensions} dimensions do")
        shape = struct.unpack_from(f">{dimensions}I", data, 4)
        if math.prod(shape) != len(data) - head:
            raise ValueError(f"it declares shape {shape}, and {len(data) - head} bytes follow")
        return np.frombuffer(data, np.uint8, offset=head).reshape(shape)
