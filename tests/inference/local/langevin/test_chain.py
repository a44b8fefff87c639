"""Near-normal chains in a density that is none, at steps so long that only the decision makes them right."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hierfl.inference.local.langevin.chain import TURN, Chain
from hierfl.inference.state import State
from hierfl.rng import ClientNoise, client_keys


def density(u: State) -> tuple[Tensor, State]:
    """-u^2 / 2 - u^4 / 4 + u: skewed, and narrower than a standard normal."""
    v = u["u"]
    height = (-v.square() / 2 - v.pow(4) / 4 + v).flatten(2).sum(2)
    return height, {"u": -v - v.pow(3) + 1}


def moments(chain: Chain, gamma: float) -> Tensor:
    """Means of u and u^2 over 4,000 chains."""
    noise = ClientNoise(client_keys(["one"]), ("chain",), 4000, dtype=torch.float64).reading(chain.steps)
    begin = torch.zeros((4000, 1, 1, 1), dtype=torch.float64)
    size = torch.full((4000, 1), gamma, dtype=torch.float64)
    kept, _, stats = chain.run({"u": begin}, size, noise, lambda: density, lambda u: u)
    assert 0.3 < float(stats[..., 0].mean()) < 0.97
    return torch.stack([kept["u"].mean(), kept["u"].square().mean()])


@pytest.mark.parametrize("leaps", [1, 3])
def test_the_decision_makes_long_steps_exact(leaps: int) -> None:
    grid = torch.linspace(-5, 5, 20001, dtype=torch.float64)
    weight = (-grid.square() / 2 - grid.pow(4) / 4 + grid).softmax(0)
    exact = torch.stack([weight @ grid, weight @ grid.square()])
    how = {"steps": 60, "burn": 30, "near_normal": True}
    longest = Chain(**how, metropolis=True, leaps=leaps).longest
    assert longest == pytest.approx(1 - math.cos(min(math.pi / 2, TURN / leaps)))
    got = moments(Chain(**how, metropolis=True, leaps=leaps), longest)
    assert torch.allclose(got, exact, atol=0.01)


def test_step_sizes_are_adapted_to_the_wanted_acceptance_and_no_further_than_a_turn() -> None:
    for leaps, target in ((1, 0.8), (2, 0.9)):
        chain = Chain(400, metropolis=True, burn=200, target=target, near_normal=True, together=True, leaps=leaps)
        noise = ClientNoise(client_keys(["one"]), ("chain",), 200, dtype=torch.float64).reading(400)
        begin = torch.zeros((200, 1, 1, 1), dtype=torch.float64)
        size = torch.full((200, 1), 0.05, dtype=torch.float64)
        _, gamma, stats = chain.run({"u": begin}, size, noise, lambda: density, lambda u: u)
        assert len(gamma.unique()) == 1
        assert 0.05 < float(gamma[0]) <= chain.longest
        assert abs(float(stats[..., 0].mean()) - target) < 0.05 or float(gamma[0]) > 0.98 * chain.longest
