"""Names of what server and clients keep of a user's guide."""

from __future__ import annotations

#: of the server: the shared parameters, and the size of Adam's steps with them
PARAMS, RATE = "posterior.params", "posterior.rate"
#: of a client: its own parameters, Adam's averages of their gradients and of their squares, steps so far, whether the
#: last fit at the final shared parameters is done
OWN_PARAMS, OWN_FIRST, OWN_SECOND, OWN_STEPS, OWN_ENDED = (
    f"own.{part}" for part in ("params", "first", "second", "steps", "ended")
)
