"""A population of heads that is known by an energy alone, p(z) = exp(-E(z)) / Z.

    E(z) = |z - mu|^2 / (2 sigma^2) + a^T tanh(B z + c)

The network (a, B, c: "energy.outside", "energy.inside", "energy.shift") is optional, and begins at zero. The gradient
of log Z is an expectation under the population, of which a second chain keeps draws (persistent contrastive
divergence).
"""

from functools import partial

import torch
from torch import Tensor

from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.state import State
from hierfl.ppl.energy import Energy


def energy_names(width: int) -> tuple[str, ...]:
    """What E is made of, beside mu; ``width`` is the network's, 0 for none."""
    return ("log_sigma", *(("energy.inside", "energy.shift", "energy.outside") if width else ()))


def first_network(width: int, start: InitialWeights) -> State:
    """The network's weights: small ones, so that the population begins as the gaussian one."""
    if not width:
        return {}
    d = len(start.head)
    inside = torch.randn((width, d), generator=start.rng, dtype=torch.float64) / d**0.5
    zeros = torch.zeros(width, dtype=torch.float64)
    return {"energy.inside": inside, "energy.shift": zeros, "energy.outside": zeros}


def energy(mu: Tensor, values: State, z: Tensor) -> Tensor:
    """E(z), (*shape, d) to (*shape).

    Args:
        mu: (d,) or rows (S, 1, d).
        values: log_sigma, and where E has a network its weights, shared (*shape) or rows (S, 1, *shape).
        z: (*shape, d).
    """
    height = 0.5 * ((z - mu) / values["log_sigma"].exp()).square().sum(-1)
    if "energy.inside" not in values:
        return height
    seen = torch.tanh((values["energy.inside"] @ z.unsqueeze(-1)).squeeze(-1) + values["energy.shift"])
    return height + (seen * values["energy.outside"]).sum(-1)


def populations(mu: Tensor, values: State, draws: Tensor) -> tuple[Energy, Energy]:
    """The population, which learns from clients; and the same held, for the chain that draws from it.

    Args:
        mu, values: as for :func:`energy`.
        draws: what that chain has kept, (S, 1, chains, kept, d).
    """
    held = {k: v.detach() for k, v in values.items()}
    learned = Energy(partial(energy, mu, values), draws)
    return learned, Energy(partial(energy, mu.detach(), held), draws, learns=False)
