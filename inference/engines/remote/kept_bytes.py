"""Messages that are kept on a disk of one's own: with a checksum, by which a file that was changed is noticed.

A disk's error, or an editor, changes numbers without a trace. A site would go on, and predict, with other values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ...state import State
from .wire import Unreadable, decode, encode

#: of the header of a kept message
CHECKSUM = "checksum"


def encode_kept(head: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """Encodes as :func:`.wire.encode` does, with a checksum in the header.

    Args:
        head: what json can say.
        tensors: {name: any shape}.
    """
    return encode({**head, CHECKSUM: _checksum(head, tensors)}, tensors)


def decode_kept(data: bytes) -> tuple[dict[str, Any], State]:
    """What :func:`encode_kept` was given. Files of versions before it have no checksum, and are read without.

    Args:
        data: the bytes of the file.

    Raises:
        Unreadable: for anything else, and where the checksum is another.
    """
    head, tensors = decode(data)
    if CHECKSUM in head and head.pop(CHECKSUM) != _checksum(head, tensors):
        raise Unreadable("it does not match its checksum")
    return head, tensors


def _checksum(head: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    return hashlib.sha256(encode(dict(sorted(head.items())), tensors)).hexdigest()
