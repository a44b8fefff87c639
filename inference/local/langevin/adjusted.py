"""Chains for a posterior that is to be believed: Metropolis-adjusted, step sizes adapted, several of them."""

from __future__ import annotations

from .step import Langevin

#: leaps of a step in coordinates in which the posterior is near to a standard normal, their size to begin with, and the
#: acceptance that it is adapted to
LEAPS, STEP_SIZE, ACCEPTANCE = 5, 0.06, 0.8
#: the acceptance that steps in other coordinates are adapted to (Roberts and Rosenthal, JRSS B 1998)
PLAIN_ACCEPTANCE = 0.574


def adjusted(names: list[str], burn: int, kept: int, thin: int, chains: int, step_size: float = 0.0) -> Langevin:
    """Chains that begin further apart than the posterior is wide.

    Args:
        names: of a linear head with a Normal prior; of any latents of a client where step_size is given: these begin at
            draws along the last round's chains, and their steps are short ones, as many as a head's take gradients.
        burn, kept, thin: steps of burn-in, kept draws of each chain, and steps from one to the next.
        chains: how many.
        step_size: to begin with, where the curvature is not known; 0 where it is.
    """
    if step_size:
        return Langevin(
            names, LEAPS * (burn + kept * thin), step_size, metropolis=True, burn=LEAPS * burn, thin=LEAPS * thin,
            target=PLAIN_ACCEPTANCE, start="apart", chains=chains,
        )  # fmt: skip
    return Langevin(
        names, burn + kept * thin, STEP_SIZE, metropolis=True, precondition="curvature", burn=burn, thin=thin,
        target=ACCEPTANCE, start="apart", chains=chains, together=True, leaps=LEAPS,
    )  # fmt: skip
