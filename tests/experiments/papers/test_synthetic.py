"""FedPop's synthetic data: what a fit has found, and how far that is from what the data were made of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from hierfl.experiments.papers.synthetic import estimates, measured


def left(shared: dict[str, torch.Tensor], personal: dict[str, torch.Tensor], rmse: float = 0.5) -> Any:
    """What a fit of three clients leaves."""
    fitted = SimpleNamespace(federation=SimpleNamespace(clients=3))
    return SimpleNamespace(shared=shared, personal=personal, fitted=fitted, last=lambda: {"pm_rmse": rmse})


def test_clients_values_are_chains_means_posterior_means_or_the_one_of_all() -> None:
    rng = torch.Generator().manual_seed(0)
    base = {"base.1.weight": torch.randn(2, 5, generator=rng, dtype=torch.float64)}
    draws = torch.randn(3, 4, 6, 2, generator=rng, dtype=torch.float64)  # clients, chains, draws
    z = draws.mean((1, 2))
    phi, of_chains = estimates(left(base, {"z_draws": draws}))
    assert torch.equal(phi, base["base.1.weight"].T)
    assert torch.allclose(of_chains, z)
    assert torch.equal(estimates(left(base, {"mu": z}))[1], z)
    assert torch.equal(estimates(left({**base, "w": z[0]}, {}))[1], z[:1].expand(3, -1))


def test_a_rotation_of_the_truth_is_no_error_and_other_clients_values_are() -> None:
    rng = torch.Generator().manual_seed(1)
    phi, _ = torch.linalg.qr(torch.randn(5, 2, generator=rng, dtype=torch.float64))
    z = torch.randn(3, 2, generator=rng, dtype=torch.float64)
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    made: Any = SimpleNamespace(phi=phi, z=z)
    weight = {"base.1.weight": (phi @ turn).T}
    same = measured(left(weight, {"mu": z @ turn}), made)
    assert same["test_rmse"] == 0.5
    assert abs(same["principal_angle"]) < 1e-6
    assert abs(same["z_error"]) < 1e-6
    assert measured(left(weight, {"mu": z @ turn + 1}), made)["z_error"] > 0.1
