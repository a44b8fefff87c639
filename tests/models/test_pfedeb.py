"""pFedEB beside exact answers: linear-Gaussian federations, where nothing is approximate, and limits of the others."""

import pytest
import torch
from scipy.optimize import minimize
from support.baselines import NOISE, Quadratics, fitted, linear, rows_of
from support.federations import blobs, slopes
from support.simulated_heads import simulated
from torch import Tensor

from hierfl import Federation
from hierfl.errors import UserError
from hierfl.inference.local.laplace.population_terms import Groups
from hierfl.inference.run.result import Run
from hierfl.models import PFedEB
from hierfl.models.pfedeb.population import population_draws
from hierfl.nn.networks.build import architecture

HELD = {"base_epochs": 0, "nodes": "off", "points": 2}


class Exact:
    """The marginal likelihood of a linear-Gaussian federation in (log rho_weights, log rho_bias, log s_w of both)."""

    def __init__(self, fed: Federation) -> None:
        parts = [fed.examples(index) for index in fed.train]
        self.x = [torch.cat([x, torch.ones(len(x), 1).double()], 1) for x, _ in parts]
        self.y = torch.cat([y for _, y in parts])
        self.d = self.x[0].shape[1]

    def spread(self, log: Tensor) -> Tensor:
        return torch.cat([log[:1].expand(self.d - 1), log[1:]]).exp()

    def log_likelihood(self, log_rho: Tensor, log_scale: Tensor) -> Tensor:
        r2, s2 = self.spread(log_rho).square(), self.spread(log_scale).square()
        x = torch.cat(self.x)
        own = torch.block_diag(*[(u * r2) @ u.T for u in self.x])
        covariance = own + (x * s2) @ x.T + NOISE**2 * torch.eye(len(x), dtype=torch.float64)
        normal = torch.distributions.MultivariateNormal(torch.zeros_like(self.y), covariance)
        return normal.log_prob(self.y)

    def maximum(self, log_scale: Tensor) -> Tensor:
        """log rho with a half-normal prior of scale 10."""

        def minus(log_rho: list) -> tuple[float, object]:
            at = torch.tensor(log_rho, dtype=torch.float64, requires_grad=True)
            height = -self.log_likelihood(at, log_scale) + (2 * at).exp().sum() / 200
            height.backward()
            return float(height.detach()), at.grad.numpy()

        return torch.tensor(minimize(minus, [-1.0, -1.0], jac=True, tol=1e-12).x)

    def posterior(self, log_rho: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Means and covariances of w (d) and of all w_j (J, d): the joint Gaussian by dense algebra."""
        j, d = len(self.x), self.d
        r2, s2 = self.spread(log_rho).square(), self.spread(log_scale).square()
        prior = torch.diag(s2).repeat(j + 1, j + 1)
        prior[d:, d:] += torch.diag(r2.repeat(j))
        design = torch.cat([torch.zeros(len(self.y), d).double(), torch.block_diag(*self.x)], 1)
        seen = design @ prior
        gain = torch.linalg.solve(seen @ design.T + NOISE**2 * torch.eye(len(self.y)).double(), seen).T
        mean, covariance = gain @ self.y, prior - gain @ seen
        blocks = torch.stack([covariance[k * d : k * d + d, k * d : k * d + d] for k in range(1, j + 1)])
        return mean[:d], covariance[:d, :d], mean[d:].view(j, d), blocks


def after(fed: Federation, rounds: int, **settings) -> Run:
    return fitted(PFedEB(linear(fed), **{**HELD, **settings}), fed, rounds)


def covariance_of_w(run: Run) -> Tensor:
    method = run.fitted.method
    packed = method.config.groups.unpacked(run.shared["w.covariance"])
    back = method.config.order.argsort()
    return packed[0][back][:, back]


def by_size(fed: Federation) -> list[int]:
    """Clients in the order of a chunk's rows."""
    return sorted(range(fed.clients), key=lambda j: -len(fed.train[j]))


@pytest.mark.parametrize("points", [1, 8])
def test_gaussian_population_and_spreads_are_the_exact_ones(points):
    fed = slopes([6, 4, 9, 3, 12, 5, 8])
    exact, run = Exact(fed), after(fed, 60, points=points, w_scale=2.0)
    log_scale = torch.full((2,), 2.0, dtype=torch.float64).log()
    log_rho = run.shared["w.log_rho"]
    torch.testing.assert_close(log_rho, exact.maximum(log_scale), rtol=0, atol=1e-5)
    torch.testing.assert_close(
        run.shared["w.log_evidence"][0], exact.log_likelihood(log_rho, log_scale), rtol=1e-9, atol=1e-8
    )
    mean, covariance, heads, _ = exact.posterior(log_rho, log_scale)
    torch.testing.assert_close(run.shared["w"], mean, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(covariance_of_w(run), covariance, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(run.personal["mu"], heads, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_scales_of_w_are_at_the_maximum_of_the_marginal_likelihood_and_their_prior():
    fed = slopes([6, 4, 9, 3, 12, 5, 8])
    exact, run = Exact(fed), after(fed, 200)
    log = [run.shared[k].clone().requires_grad_() for k in ("w.log_rho", "w.log_scale")]
    exact.log_likelihood(*log).backward()
    torch.testing.assert_close(log[1].grad, log[1].detach(), rtol=0, atol=1e-5)
    torch.testing.assert_close(log[0].grad, (2 * log[0].detach()).exp() / 100, rtol=0, atol=1e-5)


def test_a_bias_that_is_near_zero_is_not_taken_for_zero():
    """One number says little of its scale: the maximum of its likelihood alone is at zero in a sixth of such data."""
    rng = torch.Generator().manual_seed(0)
    who = torch.arange(12).repeat_interleave(15)
    x = torch.randn(180, 1, generator=rng).double()
    own = torch.randn(12, generator=rng).double()
    y = x[:, 0] + own[who] - own.mean() + NOISE * torch.randn(180, generator=rng).double()
    arrays = x.numpy(), y.numpy(), who.numpy()
    run = after(Federation.from_arrays(*arrays, test=0.0, task="regression").to(dtype=torch.float64), 40)
    assert float(run.shared["w.log_scale"][1]) > -1.5
    assert float(covariance_of_w(run)[1, 1].sqrt()) == pytest.approx(12**-0.5, rel=0.25)


def test_clients_draws_have_the_cavitys_covariance():
    """Mean and covariance of w_j given all data, w and its uncertainty among them: nothing is counted twice."""
    fed = slopes([6, 4, 9, 3, 12, 5, 8])
    run = after(fed, 40, w_scale=2.0)
    log_scale = torch.full((2,), 2.0, dtype=torch.float64).log()
    _, _, heads, covariance = Exact(fed).posterior(run.shared["w.log_rho"], log_scale)
    method = PFedEB(linear(fed), **HELD, w_scale=2.0, draws=20_000)
    # Rho as good as known: otherwise it is drawn, too.
    known = {**run.shared, "w.information": 1e9 * torch.eye(2, dtype=torch.float64)}
    chunk = rows_of(method, fed, **known, mu=run.personal["mu"][by_size(fed)][:, None])
    draws = method.schedule().final_steps[0].run(chunk, 0).values["w_j_draws"][:, 0, 0]
    heads, covariance = heads[by_size(fed)], covariance[by_size(fed)]
    torch.testing.assert_close(draws.mean(1), heads, rtol=0, atol=1e-6)
    away = (draws - draws.mean(1, keepdim=True)).movedim(0, 1)
    empirical = torch.einsum("kja,kjb->jab", away, away) / len(away)
    sd = covariance.diagonal(dim1=1, dim2=2).sqrt()
    # 10,000 pairs have standard errors of 0.7 to 1 % of the product of two standard deviations.
    assert ((empirical - covariance).abs() / (sd[:, :, None] * sd[:, None])).max() < 0.05


def heterogeneous(rho: float | Tensor, clients: int = 8, n: int = 40, seed: int = 0) -> Federation:
    rng = torch.Generator().manual_seed(seed)
    who = torch.arange(clients).repeat_interleave(n)
    x = torch.randn(clients * n, 2, generator=rng).double()
    w = torch.randn(2, generator=rng).double() + rho * torch.randn(clients, 2, generator=rng).double()
    y = (x * w[who]).sum(1) + 0.3 + NOISE * torch.randn(clients * n, generator=rng).double()
    arrays = x.numpy(), y.numpy(), who.numpy()
    return Federation.from_arrays(*arrays, test=0.0, task="regression").to(dtype=torch.float64)


@pytest.mark.slow
def test_with_ever_more_data_w_is_the_mean_of_the_heads():
    """Eq. 9 of pFedVEM, whose weights 1 / rho^2 are those of heads that are known."""
    run = after(heterogeneous(1.0, n=20_000), 3, w_scale=1e4, rho_scale=1e4)
    torch.testing.assert_close(run.shared["w"], run.personal["mu"].mean(0), rtol=0, atol=1e-4)
    divisor = (run.personal["mu"] - run.shared["w"]).square()
    expected = torch.stack([divisor[:, :2].sum() / (2 * 7), divisor[:, 2].sum() / 7])  # REML's (J - 1) d
    log_rho = after(heterogeneous(1.0, n=20_000), 12, w_scale=1e4, rho_scale=1e4).shared["w.log_rho"]
    torch.testing.assert_close((2 * log_rho[:1]).exp(), expected[:1], rtol=1e-3, atol=0)


def test_without_spread_a_round_is_newtons_step_on_the_pooled_likelihood():
    fed = blobs([9, 6, 14], features=3)
    net = architecture("linear", fed)
    few = {"sigma_0": 1e-6, "w_scale": 3.0, "points": 1, "exchange": "full", **HELD}
    at, after_one = (fitted(PFedEB(net, **few), fed, k).shared["w"] for k in (0, 1))
    x, y = fed.examples(torch.cat(list(fed.train)))
    head = PFedEB(net).network.head

    def height(w: Tensor) -> Tensor:
        logits = head(w, x[None])[0]
        return torch.log_softmax(logits, -1)[torch.arange(len(y)), y].sum() - w.square().sum() / 18

    gradient = torch.autograd.functional.jacobian(height, at)
    hessian = torch.autograd.functional.hessian(height, at)
    torch.testing.assert_close(after_one, at - torch.linalg.solve(hessian, gradient), rtol=1e-5, atol=1e-6)


def test_a_single_client_has_its_own_maximum():
    fed = slopes([30])
    run = after(fed, 40, w_scale=1e5, sigma_0=0.5)
    quadratic = Quadratics(fed)
    own = torch.linalg.solve(quadratic.A[0], quadratic.b[0])
    torch.testing.assert_close(run.shared["w"], own, rtol=0, atol=1e-6)
    torch.testing.assert_close(run.personal["mu"][0], own, rtol=0, atol=1e-6)


@pytest.mark.parametrize("start", [0.01, 0.3, 3.0])
def test_where_clients_agree_every_start_says_zero(start):
    run = after(heterogeneous(0.0, seed=4), 40, sigma_0=start, spreads="pooled", w_scale=1.0)
    assert float(run.shared["w.log_rho"]) == -7.0


def test_nodes_integrate_over_the_posterior_of_rho():
    fed = heterogeneous(0.3, clients=6, n=8, seed=2)
    run = after(fed, 25, nodes="on", spreads="pooled", w_scale=1.0)
    exact = Exact(fed)
    grid = torch.linspace(-8, 3, 150, dtype=torch.float64)
    log_scale = torch.zeros(2, dtype=torch.float64)
    height = torch.stack([exact.log_likelihood(t.expand(2), log_scale) for t in grid])
    density = (height + grid - (2 * grid).exp() / 200).softmax(0)
    weights, points = run.shared["nodes.log_weight"].softmax(0), run.shared["nodes.log_rho"][:, 0]
    for power in (1, 2):
        expected, estimate = (density * grid.exp() ** power).sum(), (weights * points.exp() ** power).sum()
        torch.testing.assert_close(estimate, expected, rtol=0.02, atol=0)


def test_clients_with_the_same_spread_share_it():
    fed = heterogeneous(0.8, clients=40, n=20, seed=3)
    shared, own = (after(fed, 60, w_scale=2.0, spreads=spreads) for spreads in ("blocks", "clients"))
    assert (own.shared["w.log_varies"] < -4).all()
    torch.testing.assert_close(own.shared["w.log_rho"], shared.shared["w.log_rho"], rtol=0, atol=1e-3)
    torch.testing.assert_close(
        own.personal["log_rho"][:, 0], shared.shared["w.log_rho"][:1].expand(40), rtol=0, atol=2e-3
    )


def test_a_client_that_is_not_like_the_others_has_a_spread_of_its_own_and_less_weight():
    spread = torch.full((40, 1), 0.2, dtype=torch.float64)
    spread[:4] = 6.0
    fed = heterogeneous(spread, clients=40, n=20, seed=3)
    shared, own = (after(fed, 60, w_scale=2.0, spreads=spreads) for spreads in ("blocks", "clients"))
    assert (own.shared["w.log_varies"][0] > -1).all()
    strange = torch.tensor([int(name) < 4 for name in fed.ids])
    log_rho = own.personal["log_rho"][:, 0]
    assert log_rho[strange].min() > log_rho[~strange].max()
    weight = {name: run.personal["seen"][:, -1] for name, run in (("shared", shared), ("own", own))}
    share = {name: value[strange].sum() / value.sum() for name, value in weight.items()}
    # A third of the numbers are biases, in which they are like the others.
    assert share["own"] < 0.4 * share["shared"]


@pytest.mark.slow
def test_what_is_not_sent_as_a_whole_leads_to_the_same_population():
    """A diagonal or one matrix for each output: the same w, since u_j is exact whatever A_j leaves out."""
    fed = blobs([19, 26, 34, 22], features=3)
    net = architecture("linear", fed)
    same = {**HELD, "prior": "hierarchical", "w_scale": 1.0, "points": 1, "spreads": "pooled"}

    def modes(exchange: str) -> Tensor:
        shared = fitted(PFedEB(net, exchange=exchange, sigma_0=0.5, **same), fed, 60).shared
        return shared["w"], shared["w.log_rho"]

    w, rho = modes("full")
    for exchange in ("outputs", "diagonal"):
        other, other_rho = modes(exchange)
        # Rho's score has the trace of A S A, in which the forms differ a little.
        assert abs(float(other_rho - rho)) < 0.15
        torch.testing.assert_close(other, w, rtol=0.1, atol=0.05)


def test_the_global_model_is_at_the_mean_for_classes_and_averages_over_heads_for_a_regression():
    fed = blobs([9, 14, 11], features=3)
    run = fitted(PFedEB(architecture("linear", fed)), fed, 5)
    x, y = fed.examples(torch.cat(list(fed.test)))
    with torch.no_grad():
        logits = run.fitted.method.network.head(run.shared["w"][None, None], x[None])[0]
    wanted = torch.nn.functional.cross_entropy(logits.double(), y.long())
    assert run.last("test")["gm_nll"] == pytest.approx(float(wanted), rel=1e-6)
    wide = simulated("gaussian", 1.0, 0, (6, 7, 5)).fed
    run = fitted(PFedEB(linear(wide), w_scale=1.0), wide, 5)
    x, y = wide.examples(torch.cat(list(wide.test)))
    mean = torch.cat([x, torch.ones(len(x), 1).double()], 1) @ run.shared["w"]
    at_mean = -torch.distributions.Normal(mean, NOISE).log_prob(y).mean()
    assert run.last("test")["gm_nll"] < float(at_mean) - 0.1


@pytest.mark.parametrize("momentum", [pytest.param(0.0, marks=pytest.mark.slow), 0.9])
def test_a_base_that_is_held_stays_where_it_is(momentum: float):
    """Also where the server's momentum would go on; heads and population move."""
    fed = blobs([9, 14, 11], features=3)
    method = PFedEB(architecture("mlp:4", fed), base_rounds=2, server_momentum=momentum, base_lr=0.1)
    shared = {rounds: fitted(method, fed, rounds).shared for rounds in (1, 2, 6)}
    base = [name for name in shared[2] if name.startswith("base")]
    for name in base:
        torch.testing.assert_close(shared[6][name], shared[2][name], rtol=1e-10, atol=1e-12)
    assert any((shared[2][name] - shared[1][name]).abs().max() > 1e-3 for name in base)
    assert (shared[6]["w"] - shared[2]["w"]).abs().max() > 1e-3


def test_what_cannot_be_is_refused():
    fed = blobs([9, 6], features=3)
    with pytest.raises(UserError, match="spreads=clients has none"):
        PFedEB(architecture("linear", fed), nodes="on", spreads="clients")


def test_draws_of_w_move_as_little_as_its_covariance():
    """Where eigenvalues are alike eigenvectors turn by any angle; draws made of them would not settle."""
    groups, d = Groups(1, 6), 6
    make = torch.Generator().manual_seed(0)
    little = 1e-9 * torch.randn(d, d, generator=make, dtype=torch.float64)
    known = {"w": torch.zeros(d).double(), "w.log_rho": torch.zeros(1).double(), "w.information": torch.eye(1).double()}

    def draws(covariance: Tensor) -> Tensor:
        shared = {**known, "w.covariance": groups.packed(covariance[None])}
        return population_draws(shared, groups, torch.arange(d), 40, 40, False)["w"]

    identity = torch.eye(d, dtype=torch.float64)
    torch.testing.assert_close(draws(identity + little + little.T), draws(identity), rtol=0, atol=1e-6)
