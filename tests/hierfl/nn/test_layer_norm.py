"""Layer norm whose weights may be a client's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hierfl.nn.functional import Network
from hierfl.nn.layers.registry import kind_of


def randomised(module: nn.Module, seed: int) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return {k: torch.randn(p.shape, generator=rng, dtype=torch.float64) for k, p in module.named_parameters()}


@pytest.mark.parametrize("affine", [True, False])
def test_each_client_has_its_own(affine: bool) -> None:
    """As torch has it with one set of weights, of all or of each client."""
    with torch.random.fork_rng(devices=[]):
        module = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6, elementwise_affine=affine), nn.ReLU()).double()
    network, x = (
        Network(module, weights="drawn"),
        3 * torch.randn(2, 7, 4, generator=torch.Generator().manual_seed(9)).double(),
    )
    sets = [randomised(module, seed) for seed in (1, 2)]
    rows = {k: torch.stack([s[k] for s in sets])[:, None] for k in sets[0]}
    own = network.apply(rows, x)
    for row, (values, xs) in enumerate(zip(sets, x, strict=True)):
        expected = torch.func.functional_call(module, values, (xs,))
        torch.testing.assert_close(own[row], expected, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(network.apply(values, x)[row], expected, rtol=1e-12, atol=1e-13)


def test_only_that_of_a_vector_is_computed_so() -> None:
    assert kind_of(nn.LayerNorm(6)) is not None
    assert kind_of(nn.LayerNorm([2, 6])) is None  # whole pictures go the general way
