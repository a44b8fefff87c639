"""How large a client's message may be."""

from __future__ import annotations

#: how far a client's value may go beyond the broadcast one where nothing is said; no fit that went well came near
MAX_MESSAGE_RATIO = 1e6
#: beyond that a bound in single precision is none
LARGEST_RATIO = 1e15
