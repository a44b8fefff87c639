"""A client whose head has no finite posterior does not end everybody's fit."""

from __future__ import annotations

import logging

import pytest
import torch
from support.baselines import fitted
from support.federations import blobs
from torch import Tensor

from hierfl.models import PFedHB
from hierfl.nn.networks.build import architecture
from hierfl.ppl.gaussian_factors import cholesky, eigh


@pytest.mark.parametrize("small", [600, 1])
def test_others_are_fitted_and_the_client_has_the_population(
    small: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(matrices: Tensor) -> Tensor:
        factors = cholesky(matrices)
        factors[0] = torch.nan  # the largest client is first
        return factors

    monkeypatch.setattr("hierfl.models.pfedhb.heads.MAX_EXACT_NUMBERS", small)
    monkeypatch.setattr("hierfl.inference.local.laplace.target.cholesky", broken)
    fed = blobs([12, 20, 16], classes=3)
    net, settings = architecture("mlp:4", fed), {"epochs": 1, "lr": 0.1, "batch": 8, "draws": 40, "nodes": "off"}
    method = PFedHB(net, **settings)
    with caplog.at_level(logging.WARNING, "hierfl"):
        run = fitted(method, fed, 4)
    assert "the heads of 1 client diverged, and have the population's posterior: place-01" in caplog.text
    assert run.evaluations[-1]["diverged"] == 2  # heads move in every second round, and its steps were undone
    draws = run.personal["w_j_draws"].reshape(3, -1, method.network.head.d)  # (J, K, d)
    assert bool(draws.isfinite().all())
    torch.testing.assert_close(draws[1].mean(0), run.shared["w"])
    rho = run.shared["heads.log_rho"].exp()[method.heads.blocks]
    torch.testing.assert_close(draws[1].std(0).mean(), rho.mean().to(draws), rtol=0.2, atol=0)
    test = fed.x[fed.test[0]]
    assert bool(run.predict(test, client=0, draws=20).isfinite().all())
    assert bool(run.predict(test, client=1, draws=20).isfinite().all())


def test_factors_of_what_has_none_are_no_numbers() -> None:
    whole = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    factors = cholesky(torch.stack([whole, whole * torch.nan, -whole]))
    torch.testing.assert_close(factors[0] @ factors[0].mT, whole)
    assert bool(factors[1:].isnan().all())


def test_small_numbers_cost_no_eigenvalue() -> None:
    """The matrix of a client whose features are all zero: of low rank, the rest rounding errors of rounding errors."""
    noise = torch.randn(50, 50, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    size = 10.0 ** torch.linspace(0, -25, 50, dtype=torch.float64)
    matrix = (size[:, None] * (noise @ noise.T) * size).float()
    values, vectors = eigh(matrix)
    torch.testing.assert_close(values.double(), torch.linalg.eigvalsh(matrix.double()), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(vectors * values @ vectors.mT, matrix, rtol=0, atol=1e-4)
