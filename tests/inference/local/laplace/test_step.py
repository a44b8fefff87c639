"""Gaussian posteriors of heads: stationary points, forms of the covariance, limits."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from support.baselines import rows_of
from support.federations import blobs
from torch import Tensor

from hierfl import Federation
from hierfl.errors import UserError
from hierfl.inference.local.laplace import step as laplace_step
from hierfl.inference.local.laplace.curvature import COVARIANCES
from hierfl.inference.local.laplace.forms import blocks_of, matrix_times
from hierfl.inference.local.laplace.points import SETS, predictor_points
from hierfl.inference.local.laplace.population_terms import Groups, stretch
from hierfl.inference.local.laplace.step import GaussianHead
from hierfl.inference.local.laplace.target import Target
from hierfl.models import PFedEB, PFedVEM
from hierfl.nn.head import orthonormal_contrasts
from hierfl.nn.networks.build import architecture

RHO = 0.6


@pytest.fixture(scope="module")
def fed() -> Federation:
    return blobs([23, 7, 12], features=3)


def method_of(fed: Federation, **settings) -> PFedEB:
    return PFedEB(architecture("linear", fed), prior="fixed", sigma_0=RHO, **settings)


def moved(method: PFedEB, fed: Federation, again: int = 1, **step) -> dict[str, Tensor]:
    chunk = rows_of(method, fed)
    for _ in range(again):
        chunk = GaussianHead("w_j", "mu", points=method.config.points, **step).run(chunk, 0)
    return chunk.values


def log_joint(method: PFedEB, fed: Federation, client: int, w: Tensor, moves: Tensor | float = 0.0) -> Tensor:
    """Of heads (K, d), the logits moved, (K, n, classes)."""
    x, y = fed.examples(fed.train[client])
    logits = method.network.head(w[:, None, None], x[None])[:, 0] + moves
    seen = torch.log_softmax(logits, -1)[:, torch.arange(len(y)), y].sum(-1)
    return (seen - w.square().sum(-1) / (2 * RHO**2)).mean()


def moves_of(method: PFedEB, fed: Federation, client: int, away: Tensor) -> Tensor:
    """What points (K, n, classes) of deviations (M, d) do to the logits, example by example."""
    x, _ = fed.examples(fed.train[client])
    contrasts = orthonormal_contrasts(method.network.head.outputs)
    each = method.network.head(away[:, None, None], x[None])[:, 0] @ contrasts.T  # (M, n, q)
    moves = []
    for i in range(len(x)):
        root = torch.linalg.cholesky(each[:, i].T @ each[:, i] / len(away))
        moves.append(predictor_points(len(root), method.config.points)[i % SETS] @ root.T @ contrasts)
    return torch.stack(moves, 1)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_single_precision_is_that_of_the_chunk_and_not_of_the_steps(covariance, fed, monkeypatch):
    """Matrices are factorised in double precision, but those of low rank, which are large."""
    seen = []

    class Seen(Target):
        def __init__(self, chunk, latent, dtype, *others):
            seen.append(dtype)
            super().__init__(chunk, latent, dtype, *others)

    monkeypatch.setattr("hierfl.inference.local.laplace.step.Target", Seen)
    method, single = method_of(fed), replace(fed, dtype=torch.float32)
    chunk = rows_of(method, single)
    chunk = replace(chunk, shared={k: v.float() for k, v in chunk.shared.items()}).put(
        {k: v.float() for k, v in chunk.values.items()}
    )
    values = GaussianHead("w_j", "mu", covariance=covariance, rank=6).run(chunk, 0).values
    assert seen == [torch.float32 if covariance == "low_rank" else torch.float64]
    assert values["mu"].dtype == torch.float32


@pytest.mark.parametrize("points", [1, 16])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_means_are_stationary_whatever_the_covariance(fed, points, covariance):
    """The gradient of the expected log joint by the mean is zero: at the mode, and averaged over points."""
    method = method_of(fed, points=points)
    values = moved(method, fed, again=40, covariance=covariance, rank=6)
    for row, client in enumerate((0, 2, 1)):
        mu, moves = values["mu"][row, 0], torch.zeros(1, 1, 3)
        torch.testing.assert_close(values["w_j_draws"][row, 0, 0].mean(0), mu, rtol=1e-9, atol=1e-12)
        if points > 1:
            moves = moves_of(method, fed, client, values["w_j_away"][row, 0])

        def height(mu, moves=moves, client=client):
            return log_joint(method, fed, client, mu.expand(len(moves), -1), moves)

        assert torch.autograd.functional.jacobian(height, mu).abs().max() < 1e-4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_steps_end_where_rows_have_arrived_and_share_a_preconditioner(fed, monkeypatch, dtype):
    """Curvatures of two turns: at the start, and after each. The mode is that of the exact form."""
    counted = []
    for name in ("curvature", "newton_step"):
        whole = getattr(laplace_step, name)
        monkeypatch.setattr(
            laplace_step, name, lambda *given, _whole=whole, _name=name: counted.append(_name) or _whole(*given)
        )
    method = method_of(fed)
    chunk = rows_of(method, replace(fed, dtype=dtype))
    chunk = replace(chunk, shared={k: v.to(dtype) for k, v in chunk.shared.items()})
    chunk = chunk.put({k: v.to(dtype) for k, v in chunk.values.items()})
    step = GaussianHead("w_j", "mu", covariance="low_rank", rank=6, newton=30, turns=2, points=1)
    mode = step.run(chunk, 0).values["mu"]
    assert counted.count("curvature") == 3
    assert counted.count("newton_step") < 15
    exact = GaussianHead("w_j", "mu", newton=30, points=1).run(chunk, 0).values["mu"]
    torch.testing.assert_close(mode, exact, rtol=0, atol=1e-7 if dtype == torch.float64 else 1e-3)


def test_the_variational_precision_is_minus_the_mean_hessian(fed):
    """Averaged over draws of the head itself; deviations of small heads have the posterior's covariance exactly."""
    method = method_of(fed, points=256)
    values = moved(method, fed, again=25)
    mu, away = values["mu"][1, 0], values["w_j_away"][1, 0]
    covariance = away.T @ away / len(away)
    make = torch.Generator().manual_seed(2)
    e = torch.randn(4000, 8, generator=make, dtype=torch.float64) @ torch.linalg.cholesky(covariance).T
    heads = torch.cat([e, -e])

    def height(mu):
        return log_joint(method, fed, 2, mu + heads)

    assert torch.autograd.functional.jacobian(height, mu).abs().max() < 0.03
    torch.testing.assert_close(
        torch.linalg.inv(-torch.autograd.functional.hessian(height, mu)), covariance, rtol=0, atol=0.02 * RHO**2
    )


def test_laplaces_precision_is_minus_the_hessian_at_the_mode(fed):
    method = method_of(fed, points=1)
    values = moved(method, fed, final=40_000)
    draws, mode = values["w_j_draws"][1, 0, 0], values["mu"][1, 0]
    hessian = torch.autograd.functional.hessian(lambda w: log_joint(method, fed, 2, w[None]), mode)
    covariance, sampled = torch.linalg.inv(-hessian), torch.cov(draws.T)
    sd = covariance.diagonal().sqrt()
    assert ((sampled - covariance).abs() / (sd[:, None] * sd)).max() < 0.03


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
    for points in (1, 16, 256):
        method = method_of(fed, points=points)
        chunk = rows_of(method, fed)
        for final in (*[0] * 12, 20_000):
            chunk = GaussianHead("w_j", "mu", final=final, points=points).run(chunk, 0)
        draws = chunk.values["w_j_draws"][2, 0, 0]
        away[points] = float(((draws.mean(0) - mean) / sd).abs().max())
        spread[points] = float((draws.std(0) / sd - 1).abs().max())
    assert max(away[16], away[256]) < 0.05 < 0.2 < away[1]
    assert max(spread[16], spread[256]) < 0.04 < spread[1]


def test_draws_are_others_in_every_round_and_what_carries_the_covariance_is_not(fed):
    method = method_of(fed)
    chunk = rows_of(method, fed)
    first, second = (GaussianHead("w_j", "mu").run(replace(chunk, round=k), 0).values for k in (1, 2))
    assert not torch.isclose(first["w_j_draws"], second["w_j_draws"]).any()
    torch.testing.assert_close(first["w_j_away"], second["w_j_away"], rtol=0, atol=0)
    torch.testing.assert_close(first["mu"], second["mu"], rtol=0, atol=0)


@pytest.mark.parametrize(("rho", "with_w"), [(1e-3, True), (30.0, False)])
def test_a_mean_begins_as_far_from_w_as_it_was_where_the_prior_is_narrow(fed, rho, with_w):
    method = PFedEB(architecture("linear", fed), prior="hierarchical", sigma_0=rho, nodes="off")
    chunk = rows_of(method, fed)
    target = Target(chunk.part(0, 1), "w_j")
    m, _ = target.prior()
    mu = target.at(m).mu
    for _ in range(60):  # about where a wide prior has its mode
        at = target.at(mu)
        mu = mu + 0.05 * at.gradient
    mu = m - 1.0 if with_w else mu
    begun = m - 1.0
    followed = target.followed(mu, begun, None).mu
    torch.testing.assert_close(followed, mu + 1.0 if with_w else mu)


@pytest.mark.parametrize(
    "steps", [{"newton": 1}, {"newton": 20, "turns": 2}, {"newton": 1, "nearer": 4}], ids=["one", "all", "nearer"]
)
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_a_row_does_not_depend_on_who_is_beside_it(fed, covariance, steps):
    """A row that has arrived stays while others move."""
    method = method_of(fed)
    chunk, step = rows_of(method, fed), GaussianHead("w_j", "mu", covariance=covariance, rank=3, **steps)
    together = step.run(chunk, 0).values["mu"]
    for row in range(len(together)):
        alone = step.run(chunk.part(row, row + 1), 0).values["mu"]
        torch.testing.assert_close(alone[0], together[row], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_only_rows_that_are_far_from_their_modes_take_more_steps(fed, covariance):
    """A client that was away has a head of another network; the others take the one step that they would."""
    method = method_of(fed, points=1)
    step = GaussianHead("w_j", "mu", covariance=covariance, rank=6, newton=1, points=1)
    chunk = rows_of(method, fed)
    for _ in range(8):
        chunk = step.run(chunk, 0)
    mode = chunk.values["mu"]
    stale = mode + torch.tensor([3.0, 0.005, 0.005]).double()[:, None, None]
    single, several = (replace(step, nearer=k).run(chunk.put({"mu": stale}), 0).values["mu"] for k in (0, 4))
    torch.testing.assert_close(several[1:], single[1:], rtol=0, atol=0)
    assert (single[0] - mode[0]).abs().max() > 0.2
    torch.testing.assert_close(several[0], mode[0], rtol=0, atol=0.02)


def test_a_step_needs_its_draws_and_a_normal_prior(fed):
    with pytest.raises(UserError, match="which personal\\(\\) does not declare"):
        GaussianHead("w_j", "mu").run(rows_of(PFedVEM(architecture("linear", fed)), fed), 0)
    flat = PFedEB(architecture("linear", fed), prior="flat")
    chunk = rows_of(flat, fed)
    chunk = chunk.put({"w_j_draws": chunk.values["mu"][:, :, None, None]})
    with pytest.raises(UserError, match="needs a Normal prior"):
        GaussianHead("w_j", "mu", points=1).run(chunk, 0)


@pytest.mark.parametrize("groups", [Groups(3, 4), Groups(12, 1), Groups(1, 12)])
def test_stretched_blocks_are_above_the_whole(groups):
    make = torch.Generator().manual_seed(1)
    root = torch.randn(5, 12, 6, generator=make, dtype=torch.float64)
    whole = root @ root.mT
    blocks = blocks_of(whole, groups.number)
    c = stretch(partial(matrix_times, whole), blocks, groups, torch.ones(12, 1).double())
    dense = torch.stack([torch.block_diag(*each) for each in blocks])
    least = torch.linalg.eigvalsh(c[:, None, None] * dense - whole).amin(-1)
    assert (least > -0.01 * whole.diagonal(dim1=-2, dim2=-1).amax(-1)).all()
    assert (c <= groups.number).all()
    torch.testing.assert_close(groups.unpacked(groups.packed(blocks)), blocks, rtol=0, atol=0)


@pytest.mark.parametrize("groups", [Groups(3, 4), Groups(12, 1)])
def test_stretch_is_the_same_where_some_spreads_are_tiny(groups):
    """A spread that goes to zero takes its block's numbers along, and not what the blocks leave out."""
    make = torch.Generator().manual_seed(2)
    root = torch.randn(5, 12, 20, generator=make, dtype=torch.float64)
    whole = root @ root.mT
    member = torch.eye(2).double()[[0, 0, 0, 1] * 3]
    size = member @ torch.tensor([1e-4, 4.0]).double()
    stretches = []
    for scale in (torch.ones(12).double(), size):
        scaled = scale[:, None] * whole * scale
        stretches.append(stretch(partial(matrix_times, scaled), blocks_of(scaled, groups.number), groups, member))
    torch.testing.assert_close(stretches[1], stretches[0], rtol=1e-9, atol=0)
    assert (stretches[0] > 1.3).all()
