"""Names of what chains leave behind."""

from __future__ import annotations

#: of each kept draw, since the one before: mean acceptance probability, 0 without metropolis, step size, and whether
#: some proposal was less likely than where the chain stood by more than WILD nats, as where a step is far too long
STATS = ("acceptance_rate", "step_size", "diverging")


def kept_as(latent: str) -> str:
    """The personal value that holds a latent's draws (a value called like the latent would fix it)."""
    return f"{latent}_draws"


def stats_of(latent: str) -> str:
    """The rows' value that holds a chain's :data:`STATS`; of latents that move together the first one's."""
    return f"{kept_as(latent)}/stats"
