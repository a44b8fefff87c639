"""A Gaussian population of heads, z_j ~ N(mu, diag(sigma)^2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from pyro.distributions import Normal
from torch import Tensor

from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.state import State
from hierfl.ppl.plates import param


class Population(Protocol):
    """What a method with sampled heads needs of the population that they come from.

    Attributes:
        latents: sites of a client that chains move, the head ``z`` first.
        learned: groups of shared values that the server ascends.
        near_normal: whether a head's posterior has coordinates in which it is near to a standard normal.
    """

    @property
    def latents(self) -> tuple[str, ...]: ...

    @property
    def learned(self) -> tuple[str, ...]: ...

    @property
    def near_normal(self) -> bool: ...

    def initial(self, sigma: float, start: InitialWeights) -> State:
        """Shared values beside mu, {name: (*shape)}; sigma is the first standard deviation."""
        ...

    def priors(self, mu: Tensor) -> Mapping[str, Any]:
        """The distribution of each latent, in the order in which the model samples them.

        Args:
            mu: (d,), or rows (S, 1, d).
        """
        ...

    def new_client(self, initial: State, personal: State) -> State:
        """The state in which the chains of a client that was never seen begin, {name: (*shape)}.

        Args:
            initial: what every client began with.
            personal: the clients' rows {name: (S, *shape)}; empty where there are none.
        """
        ...


class GaussianPopulation:
    """The population N(mu, diag(sigma)^2).

    Args:
        diagonal: whether each of a head's numbers has a sigma of its own.
    """

    latents = ("z",)
    learned = ("mu", "log_sigma")
    near_normal = True

    def __init__(self, diagonal: bool) -> None:
        self.diagonal = diagonal

    def initial(self, sigma: float, start: InitialWeights) -> State:
        """The logarithms of sigma, (d,) or (1,)."""
        return {"log_sigma": torch.full((len(start.head) if self.diagonal else 1,), sigma, dtype=torch.float64).log()}

    def priors(self, mu: Tensor) -> dict[str, Any]:
        """z ~ N(mu, diag(sigma)^2), on (d,) or (S, 1, d)."""
        return {"z": Normal(mu, param("log_sigma").exp()).to_event(1)}

    def new_client(self, initial: State, personal: State) -> State:
        """The state in which every client began."""
        return initial
