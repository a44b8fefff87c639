"""PFedHB's adapters: low-rank changes of the layers below the head, with a population."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from support.adapter_simulations import entered
from support.baselines import fitted, rows_of
from support.federations import blobs, slopes
from torch import Tensor, nn

from hierfl import Federation, UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.models import FedAvg, PFedHB
from hierfl.models.pfedhb.adapter_likelihood import Likelihood
from hierfl.models.pfedhb.report import part_lines
from hierfl.models.pfedhb.turns import Turns
from hierfl.nn.architecture import Architecture
from hierfl.nn.functional import Network
from hierfl.nn.head import LinearHead
from hierfl.nn.networks.build import architecture

COMMON = {"epochs": 1, "lr": 0.1, "batch": 8}
ALONE = {"adapters": "on", "heads": "off", "shares": "off"}
SEED = 7


@pytest.fixture(scope="module")
def fed() -> Federation:
    return blobs([30, 12, 5])


def linear_base(fed: Federation, noise: float | None = None) -> Architecture:
    """One linear layer, and a head: outputs are linear in B."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        layer = nn.Linear(fed.event_shape.numel(), 4)
    return Architecture(Network(nn.Sequential(nn.Flatten(), layer)), LinearHead(4, fed.classes or 1), noise=noise)


def at(method: PFedHB, fed: Federation, log_tau: float, **changed: Tensor) -> ClientChunk:
    """All clients at a spread."""
    own = method.adapters.changes
    w = torch.randn(method.network.head.d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    log = torch.full((len(own.layers),), log_tau, dtype=torch.float64)
    seed = torch.tensor([float(SEED)]).double()
    return rows_of(method, fed, **{"w": w, "adapters.log_rho": log, "adapters.seed": seed, **changed})


def posteriors(method: PFedHB, chunk: ClientChunk, **how: Any) -> ClientChunk:
    """After all steps, as a round takes them, or the last evaluation."""
    step = dataclasses.replace(method.adapters.step("final" in how), newton=30, **how)
    moved = step.run(dataclasses.replace(chunk, method=method.plain), 0)
    return dataclasses.replace(moved, method=method)


def by_hand(method: PFedHB, chunk: ClientChunk, row: int, b: Tensor) -> Tensor:
    """The network's outputs (n, C) for one client's B, with W + B A written out; a base of one linear layer."""
    net, fed = method.network, chunk.federation
    x, _ = fed.examples(fed.train[chunk.clients[row]])
    a = method.adapters.changes.matrices(SEED, b)["1"]
    weight = net.base.module[1].weight.detach().double() + b.view(4, -1) @ a
    h = x.double().flatten(1) @ weight.T + net.base.module[1].bias.detach().double()
    w, many = chunk.shared["w"], net.head.outputs
    return h @ w[: 4 * many].view(many, 4).T + w[4 * many :]


def test_a_linear_bases_posterior(fed: Federation) -> None:
    """The mode by Newton's steps on a height by hand; score and moments by importance weights of 50,000 wider draws."""
    method = PFedHB(linear_base(fed), **COMMON, **ALONE)
    tau = 0.6
    chunk = posteriors(method, at(method, fed, math.log(tau)), final=5000, many=(2048, 60_000))
    d, rng = method.adapters.changes.d, torch.Generator().manual_seed(0)
    corrections = []
    for row, client in enumerate(chunk.clients):
        y = fed.examples(fed.train[client])[1]
        zero = torch.zeros(d, dtype=torch.float64)
        jacobian = torch.autograd.functional.jacobian(lambda b, row=row: by_hand(method, chunk, row, b), zero)
        base = by_hand(method, chunk, row, zero)

        def height(b: Tensor, base: Tensor = base, jacobian: Tensor = jacobian, y: Tensor = y) -> Tensor:
            log_p = (base + torch.einsum("ncd,...d->...nc", jacobian, b)).log_softmax(-1)
            return log_p[..., range(len(y)), y].sum(-1) - 0.5 * (b / tau).square().sum(-1)

        b = zero
        for _ in range(10):
            gradient = torch.autograd.functional.jacobian(height, b)
            precision = -torch.autograd.functional.hessian(height, b)
            b = b + torch.linalg.solve(precision, gradient)
        torch.testing.assert_close(chunk.values["a"][row, 0], b, atol=1e-6, rtol=1e-6)
        h, covariance = precision - torch.eye(d) / tau**2, torch.linalg.inv(precision)
        shrunk = h @ covariance  # tau^2 times H P^-1 D^-1
        information = 2 * (shrunk * shrunk.mT).sum()
        torch.testing.assert_close(chunk.values["a_j/information"][row, 0, 0, 0], information, atol=1e-6, rtol=1e-6)

        e = torch.randn((50_000, d), generator=rng, dtype=torch.float64)
        far = b + 1.2 * e @ torch.linalg.cholesky(covariance).mT
        weights = (height(far) + 0.5 * e.square().sum(-1)).softmax(0)[:, None]
        mean, square = (weights * far).sum(0), (weights * far.square()).sum(0)
        score, laplace = square.sum() / tau**2 - d, (b / tau).square().sum() - shrunk.trace()
        corrections.append(float(score - laplace))
        torch.testing.assert_close(chunk.values["a_j/score"][row, 0, 0], score, atol=0.2, rtol=0)  # four errors
        drawn = chunk.values["a_j_draws"][row, 0, 0]
        torch.testing.assert_close(drawn.mean(0), mean, atol=0.03, rtol=0)
        torch.testing.assert_close(drawn.std(0), (square - mean.square()).sqrt(), atol=0.03, rtol=0)
    assert max(map(abs, corrections)) > 0.5, corrections


class Branches(nn.Module):
    """No chain: convolutions, tokens, and a way around."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 3, 3, padding=1), nn.GroupNorm(1, 3)
        self.tokens, self.last = nn.Linear(4, 4), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm(self.conv(x.unflatten(-1, (2, 2))[:, None])).flatten(2)
        return self.last((z + self.tokens(z).tanh()).flatten(1))


@pytest.mark.parametrize("kind", ["mlp", "branches"])
def test_gradient_and_curvature_are_autograds(fed: Federation, kind: str) -> None:
    """Of several layers, one after the other, by copies of the weights: curvature is J^T C J, J by autograd."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        module = (
            Branches()
            if kind == "branches"
            else nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5))
        )
    method = PFedHB(Architecture(Network(module), LinearHead(5, 3)), **COMMON, **ALONE)
    changes, network = method.adapters.changes, method.network
    assert len(changes.layers) == (3 if kind == "branches" else 2)
    chunk = at(method, fed, -1.0)
    tau = torch.full((changes.d,), math.exp(-1.0), dtype=torch.float64)
    likelihood = Likelihood.for_chunk(dataclasses.replace(chunk, method=method.plain), changes, tau)
    assert not changes.unchecked
    b = 0.5 * torch.randn((3, changes.d), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    height, gradient, curvature = likelihood.expanded(b)
    torch.testing.assert_close(likelihood.height(b), height)
    for row, client in enumerate(chunk.clients):
        x, y = fed.examples(fed.train[client])
        w = chunk.shared["w"]

        def outputs(b: Tensor, x: Tensor = x, w: Tensor = w) -> Tensor:
            own = changes.weights(b, SEED, lambda key: chunk.shared[f"base.{key}"])
            h = torch.func.functional_call(network.base.module.double(), own, (x.double(),))
            return h @ w[:15].view(3, 5).T + w[15:]

        def whole(b: Tensor, y: Tensor = y, outputs=outputs) -> Tensor:
            log_p = outputs(b).log_softmax(-1)[range(len(y)), y].sum()
            return log_p - 0.5 * (b / math.exp(-1.0)).square().sum()

        torch.testing.assert_close(height[row], whole(b[row]))
        torch.testing.assert_close(gradient[row], torch.autograd.functional.jacobian(whole, b[row]))
        jacobian = torch.autograd.functional.jacobian(outputs, b[row])
        p = outputs(b[row]).softmax(-1)
        second = torch.diag_embed(p) - p[:, :, None] * p[:, None]
        torch.testing.assert_close(curvature[row], torch.einsum("ncd,nce,nef->df", jacobian, second, jacobian))


def test_rows_are_taken_some_at_a_time(fed: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    method = PFedHB(linear_base(fed), **COMMON, **ALONE)
    chunk = at(method, fed, 0.0)
    whole = posteriors(method, chunk, many=(64, 64))
    monkeypatch.setattr("hierfl.models.pfedhb.adapters.MAX_NUMBERS_AT_ONCE", 700)
    parts = posteriors(method, chunk, many=(64, 64))
    for key in ("a", "a_j/score", "a_j/information"):
        torch.testing.assert_close(parts.values[key], whole.values[key])


def learned_tau(method: PFedHB, chunk: ClientChunk, rounds: int) -> Tensor:
    """log tau after scoring steps on sums, given the network."""
    rule, state = method.adapters.rule(Turns()), {}
    shared = {k: v for k, v in chunk.shared.items() if k.startswith("adapters.")}
    for number in range(1, rounds + 1):
        chunk = dataclasses.replace(chunk, shared={**chunk.shared, **shared}, round=number)
        chunk = dataclasses.replace(posteriors(method, chunk), shared=chunk.shared)
        total = {k: v.sum(0) for k, v in rule.message([*shared], chunk).items()}
        many = len(chunk.clients)
        context = AggregationContext(
            many, torch.tensor(many), number, lambda names: {}, rule_state=state, shared=chunk.shared
        )  # fmt: skip
        shared = rule.update(shared, total, context)
    return shared["adapters.log_rho"]


def test_tau_is_the_maximum_of_the_marginal_likelihood(monkeypatch: pytest.MonkeyPatch) -> None:
    """A linear regression: y ~ N(f, s^2 I + tau^2 J J^T) is maximised over tau by a search.

    Without noise of draws: they are of the posterior itself, with equal weights, where they are not drawn wider.
    """
    fed = slopes([20, 35, 12, 25, 9, 40])
    net = linear_base(fed, noise=0.5)
    method = PFedHB(net, **COMMON, adapters="on", heads="off", outcome="off")
    chunk = at(method, fed, math.log(0.1))
    d, rng = method.adapters.changes.d, torch.Generator().manual_seed(3)
    y, zero = fed.y.clone().double(), torch.zeros(d, dtype=torch.float64)
    designs = []
    for row, client in enumerate(chunk.clients):
        base = by_hand(method, chunk, row, zero)[:, 0]
        j = torch.stack([by_hand(method, chunk, row, e)[:, 0] - base for e in torch.eye(d, dtype=torch.float64)], 1)
        b = 0.7 * torch.randn(d, generator=rng, dtype=torch.float64)
        e = 0.5 * torch.randn(len(base), generator=rng, dtype=torch.float64)
        y[fed.train[client]] = base + j @ b + e
        designs.append((j, j @ b + e))
    simulated = dataclasses.replace(fed, y=y.to(fed.y))
    chunk = dataclasses.replace(at(method, simulated, math.log(0.1)), clients=chunk.clients)

    def evidence(log_tau: float) -> float:
        log_evidence = 0.0
        for j, residual in designs:
            covariance = 0.25 * torch.eye(len(j)) + math.exp(2 * log_tau) * j @ j.T
            log_evidence -= 0.5 * float(torch.logdet(covariance) + residual @ torch.linalg.solve(covariance, residual))
        return log_evidence - 0.5 * math.exp(2 * log_tau) / 100  # the half-normal prior of scale 10

    low, high = -3.0, 2.0
    for _ in range(60):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (a, high) if evidence(a) < evidence(b) else (low, b)
    highest = {**chunk.shared, "adapters.log_rho": torch.tensor([low], dtype=torch.float64)}
    posterior = posteriors(method, dataclasses.replace(chunk, shared=highest), many=(4096, 32_768))
    assert float(posterior.values["a_j/score"].sum()) == pytest.approx(math.exp(2 * low) / 100, abs=0.3)
    # Laplace's approximation is exact, and its draws have equal weights.
    monkeypatch.setattr("hierfl.models.pfedhb.adapters.DRAWN", (16, 16))
    monkeypatch.setattr("hierfl.models.pfedhb.adapter_draws.WIDTHS", (1.0,))
    monkeypatch.setattr("hierfl.models.pfedhb.adapter_draws.REFINED", 0)
    assert float(learned_tau(method, chunk, 30)[0]) == pytest.approx(low, abs=1e-4)
    assert 0.4 < math.exp(low) < 1.2


def test_without_spread_the_model_is_the_one_without_adapters(fed: Federation) -> None:
    net = architecture("mlp:5", fed)
    method = PFedHB(net, **COMMON, **ALONE)
    chunk = posteriors(method, at(method, fed, -12.0))
    assert float(chunk.values["a"].abs().max()) < 1e-7
    run = fitted(PFedHB(net, **COMMON, **ALONE), fed, 3)
    plain = fitted(FedAvg(net, **COMMON), fed, 3)
    assert torch.equal(run.shared["w"], plain.shared["w"])
    assert run.evaluations[-1]["gm_nll"] == pytest.approx(plain.evaluations[-1]["gm_nll"], rel=1e-12)
    # a client of which nothing is known has B = 0, and one's rows say what they say
    x, y = fed.examples(fed.train[0])
    torch.testing.assert_close(run.predict_new_client(x, draws=0), plain.predict_new_client(x, draws=0))
    name = next(iter(fed.ids))
    torch.testing.assert_close(
        run.predict_new_client(x, draws=0, given=(x, y)), run.predict(x, name, draws=0), atol=0.01, rtol=0.05
    )
    # a module of its own has W + B A in it
    torch.testing.assert_close(run.client_module(name, draws=0)(x).exp(), run.predict(x, name, draws=0))


@pytest.mark.slow
@pytest.mark.cpu(5, "two fits of twelve rounds")
def test_it_enters_where_it_is_in_the_data_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hierfl.models.pfedhb.adapters.DRAWN", (64, 64))
    for truth in ("none", "adapters"):
        numbers = entered(truth, 1, judged=4, draws=8)
        assert numbers["entered_adapters"] == float(truth == "adapters")
        assert "adapters: " in part_lines({**numbers, "rounds": 9})[0]


def test_what_cannot_have_them_is_one_line(fed: Federation) -> None:
    wrong: list[tuple[Architecture, dict[str, object], str]] = [
        (architecture("linear", fed), {}, "^adapters: the network below the head has no linear layer"),
        (architecture("mlp:300,300", fed), {}, "have 1200 numbers for each client, and 1000 at most"),
        (architecture("mlp:5", fed), {"adapter_rank": 5}, "rank 5 is above that of 1, a matrix of 5 x 4"),
        (architecture("mlp:5", fed), {"adapter_layers": "layer4"}, "unknown layer to adapt 'layer4'"),
    ]  # fmt: skip
    for net, how, line in wrong:
        with pytest.raises(UserError, match=line):
            PFedHB(net, adapters="on", **how)
    batchwise = nn.Sequential(nn.utils.skip_init(nn.Linear, 4, 5), nn.BatchNorm1d(5, track_running_stats=False))
    with pytest.raises(UserError, match="features depend on the batch: '1' is BatchNorm1d without running statistics"):
        PFedHB(Architecture(Network(batchwise), LinearHead(5, 3)), adapters="on")
    with pytest.raises(UserError, match="adapter_rank=3 changes nothing with adapters=off"):
        PFedHB(architecture("mlp:5", fed), adapter_rank=3)
    with pytest.raises(UserError, match="noise would hide: adapters=off"):
        fitted(PFedHB(architecture("mlp:5", fed), **COMMON, **ALONE), fed, 1, dp="client", epsilon=8.0)

    class Turned(nn.Module):
        """Its layer sees examples in the second place."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.utils.skip_init(nn.Linear, 2, 3)
            nn.init.ones_(self.layer.weight)
            nn.init.zeros_(self.layer.bias)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.unflatten(1, (2, 2)).transpose(0, 1)).transpose(0, 1).flatten(1)

    method = PFedHB(Architecture(Network(Turned()), LinearHead(6, 3)), **COMMON, **ALONE, adapter_rank=1)
    with pytest.raises(UserError, match="^adapters: 'layer' is not called once, with one example in each row"):
        fitted(method, fed, 1)
