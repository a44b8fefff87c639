"""A population of heads that is known by an energy alone, p(z) = exp(-E(z)) / Z: FedPop's population=energy.

    E(z) = |z - mu|^2 / (2 sigma^2) + a^T tanh(B z + c)

The network (a, B, c: "energy.outside", "energy.inside", "energy.shift") is optional, and begins at zero. The gradient
of log Z is an expectation under the population. A second chain of every client, ``z_new``, keeps draws of it
(persistent contrastive divergence): heads of a client that does not exist.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.state import State
from hierfl.ppl.energy import Energy
from hierfl.ppl.plates import param


class EnergyPopulation:
    """The population exp(-E(z)) / Z, learned with a second chain; see :class:`._gaussian_population.Population`.

    Args:
        hidden: width of the network in E; 0 for none, and E is a Gaussian's.
    """

    latents = ("z", "z_new")
    near_normal = False

    def __init__(self, hidden: int) -> None:
        self.hidden = hidden

    @property
    def learned(self) -> tuple[str, ...]:
        """mu and sigma, and the network's weights."""
        return ("mu", "log_sigma", *(["energy"] if self.hidden else []))

    @property
    def names(self) -> tuple[str, ...]:
        """The shared values that E is made of, beside mu."""
        return ("log_sigma", *(("energy.inside", "energy.shift", "energy.outside") if self.hidden else ()))

    def initial(self, sigma: float, start: InitialWeights) -> State:
        """The logarithm of sigma (1,), and the network's weights."""
        log_sigma = torch.full((1,), sigma, dtype=torch.float64).log()
        return {"log_sigma": log_sigma, **first_network(self.hidden, start)}

    def priors(self, mu: Tensor) -> dict[str, Any]:
        """z_new ~ exp(-E) / Z, from which nothing is learned, and z ~ exp(-E) / Z, both on (d,) or (S, 1, d)."""
        learned, fixed = populations(mu, {name: param(name) for name in self.names}, param("z_new_draws"))
        return {"z_new": fixed, "z": learned}

    def new_client(self, initial: State, personal: State) -> State:
        """The clients' second chains, which draw from the population; beside each of them one of the client's own."""
        if not personal:
            return initial
        pool = personal["z_new_draws"].flatten(0, 1)
        own = initial["z_draws"][:1].expand(len(pool), *initial["z_draws"].shape[1:])
        return {**initial, "z_draws": own, "z_new_draws": pool}


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
    hidden = torch.tanh((values["energy.inside"] @ z.unsqueeze(-1)).squeeze(-1) + values["energy.shift"])
    return height + (hidden * values["energy.outside"]).sum(-1)


def populations(mu: Tensor, values: State, draws: Tensor) -> tuple[Energy, Energy]:
    """The population, which learns from clients; and the same held, for the chain that draws from it.

    Args:
        mu, values: as for :func:`energy`.
        draws: what that chain has kept, (S, 1, chains, kept, d).
    """
    fixed_values = {k: v.detach() for k, v in values.items()}
    learned = Energy(partial(energy, mu, values), draws)
    return learned, Energy(partial(energy, mu.detach(), fixed_values), draws, learns=False)
