"""Gaussian posteriors of heads: stationary points, forms of the covariance, limits."""

import pytest
import torch
from torch import Tensor

from hierfl import Federation
from hierfl.errors import UserError
from hierfl.inference.local.laplace.curvature import COVARIANCES
from hierfl.inference.local.laplace.population_terms import Groups, stretch
from hierfl.inference.local.laplace.step import GaussianHead
from hierfl.models import PFedEB, PFedVEM
from hierfl.nn.networks.build import architecture
from tests.support.baselines import rows_of
from tests.support.federations import blobs

RHO = 0.6


@pytest.fixture(scope="module")
def fed() -> Federation:
    return blobs([23, 7, 12], features=3)


def method_of(fed: Federation, **settings) -> PFedEB:
    return PFedEB(architecture("linear", fed), prior="fixed", sigma_0=RHO, **settings)


def moved(method: PFedEB, fed: Federation, again: int = 1, **step) -> dict[str, Tensor]:
    chunk = rows_of(method, fed)
    for _ in range(again):
        chunk = GaussianHead("w_j", "mu", **step).run(chunk, 0)
    return chunk.values


def expected_log_joint(method: PFedEB, fed: Federation, client: int, draws: Tensor) -> Tensor:
    x, y = fed.examples(fed.train[client])
    logits = method.network.head(draws[:, None, None], x[None])[:, 0]
    seen = torch.log_softmax(logits, -1)[:, torch.arange(len(y)), y].sum(-1)
    return (seen - draws.square().sum(-1) / (2 * RHO**2)).mean()


@pytest.mark.parametrize("particles", [1, 16])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_means_are_stationary_whatever_the_covariance(fed, particles, covariance):
    """The gradient of the expected log joint by the mean is zero: at the mode, and averaged over draws."""
    method = method_of(fed, particles=particles)
    values = moved(method, fed, again=40, covariance=covariance, rank=6)
    for row, client in enumerate((0, 2, 1)):
        draws = values["w_j_draws"][row, 0, 0]
        torch.testing.assert_close(draws.mean(0), values["mu"][row, 0], rtol=1e-9, atol=1e-12)
        away = draws - draws.mean(0)

        def height(mu, away=away, client=client):
            return expected_log_joint(method, fed, client, mu + away)

        slope = torch.autograd.functional.jacobian(height, values["mu"][row, 0])
        assert slope.abs().max() < 1e-4


def test_the_variational_precision_is_minus_the_mean_hessian(fed):
    method = method_of(fed, particles=4096)
    draws = moved(method, fed, again=12)["w_j_draws"][1, 0, 0]
    mean, away = draws.mean(0), draws - draws.mean(0)
    hessian = torch.autograd.functional.hessian(lambda mu: expected_log_joint(method, fed, 2, mu + away), mean)
    root = torch.linalg.cholesky(-hessian)
    # (covariances of 2048 pairs: standard errors of 2 to 3 %)
    torch.testing.assert_close(root.T @ (away.T @ away / len(away)) @ root, torch.eye(8).double(), rtol=0, atol=0.12)


def test_laplaces_precision_is_minus_the_hessian_at_the_mode(fed):
    method = method_of(fed, particles=1)
    values = moved(method, fed, final=40_000)
    draws, mode = values["w_j_draws"][1, 0, 0], values["mu"][1, 0]
    hessian = torch.autograd.functional.hessian(lambda w: expected_log_joint(method, fed, 2, w[None]), mode)
    covariance, found = torch.linalg.inv(-hessian), torch.cov(draws.T)
    sd = covariance.diagonal().sqrt()
    assert ((found - covariance).abs() / (sd[:, None] * sd)).max() < 0.03


def test_a_variational_posterior_is_nearer_to_the_exact_one(fed):
    """Beside importance sampling of the posterior of seven rows: its mean is nearer than Laplace's."""
    make = torch.Generator().manual_seed(0)
    w = RHO * torch.randn(400_000, 8, generator=make, dtype=torch.float64)
    x, y = fed.examples(fed.train[1])
    logits = method_of(fed).network.head(w[:, None, None], x[None])[:, 0]
    weight = torch.log_softmax(logits, -1)[:, torch.arange(len(y)), y].sum(-1).softmax(0)
    mean = weight @ w
    sd = (weight @ (w - mean).square()).sqrt()
    away, spread = {}, {}
    for particles in (1, 16, 512):
        method = method_of(fed, particles=particles)
        chunk = rows_of(method, fed)
        for final in (0, 0, 0, 0, 0, 0, 20_000):
            chunk = GaussianHead("w_j", "mu", final=final).run(chunk, 0)
        draws = chunk.values["w_j_draws"][2, 0, 0]
        away[particles] = float(((draws.mean(0) - mean) / sd).abs().max())
        spread[particles] = float((draws.std(0) / sd - 1).abs().max())
    assert away[512] < 0.05 < away[16] < 0.2 < away[1]
    assert spread[512] < 0.04 < spread[1]


def test_a_step_needs_its_draws_and_a_normal_prior(fed):
    with pytest.raises(UserError, match="which personal\\(\\) does not declare"):
        GaussianHead("w_j", "mu").run(rows_of(PFedVEM(architecture("linear", fed)), fed), 0)
    flat = PFedEB(architecture("linear", fed), prior="flat")
    chunk = rows_of(flat, fed)
    chunk = chunk.put({"w_j_draws": chunk.values["mu"][:, :, None, None]})
    with pytest.raises(UserError, match="needs a Normal prior"):
        GaussianHead("w_j", "mu").run(chunk, 0)


@pytest.mark.parametrize("groups", [Groups(3, 4), Groups(12, 1), Groups(1, 12)])
def test_stretched_blocks_are_above_the_whole(groups):
    make = torch.Generator().manual_seed(1)
    root = torch.randn(5, 12, 6, generator=make, dtype=torch.float64)
    whole = root @ root.mT
    blocks = groups.blocks(whole)
    c = stretch(whole, blocks, groups)
    dense = torch.stack([torch.block_diag(*each) for each in blocks])
    least = torch.linalg.eigvalsh(c[:, None, None] * dense - whole).amin(-1)
    assert (least > -0.01 * whole.diagonal(dim1=-2, dim2=-1).amax(-1)).all()
    assert (c <= groups.number).all()
    torch.testing.assert_close(groups.unpacked(groups.packed(blocks)), blocks, rtol=0, atol=0)
