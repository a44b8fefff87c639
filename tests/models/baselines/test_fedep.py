"""FedEP: cavities, factors, and the posterior that is their product."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from support.baselines import WHOLE, Quadratics, assert_resumed_is_the_same, fitted, linear, rows_of, slope_at
from support.federations import pictures
from support.methods import order_of
from support.rounds import Rounds, intercepted
from torch import Tensor

from hierfl import Federation, UserError
from hierfl.inference import Method
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.base import LocalStep
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.models import FedAvg, FedAvgFT, FedEP
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture

COMMON = {"lr": 0.05, "batch": 4}


@dataclass(frozen=True)
class ToTheMode:
    """The mode of a tilted posterior of quadratics, in FedEP's step."""

    method: FedEP
    quadratics: Quadratics
    trains = ("w", "base")

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        g, c = self.method.cavity(chunk.view.__getitem__, chunk.n)
        mu, modes = chunk.shared["w"], []
        for row, j in enumerate(chunk.clients):
            A, b = self.quadratics.A[j], self.quadratics.b[j]
            modes.append(mu + torch.linalg.solve(A + c[row, 0].diag(), b - A @ mu + g[row, 0]))
        return chunk.own(["w"]).put({"w": torch.stack(modes).unsqueeze(1)})


class Exact(FedEP):
    """With exact local fits, on a linear model."""

    def __init__(self, fed: Federation, **settings: object) -> None:
        self.quadratics = Quadratics(fed)
        super().__init__(linear(fed), scale=1.0, **settings)

    def descent(self) -> LocalStep:
        return ToTheMode(self, self.quadratics)


def factors(ready: Fit) -> tuple[Tensor, Tensor]:
    """Of all clients, (J, d) each."""
    own = ready.fitted().personal
    return own["h_j"], own["precision_j"]


def is_the_product(ready: Fit) -> None:
    h, precision = factors(ready)
    shared = ready.state.shared
    torch.testing.assert_close(shared["precision"], precision.sum(0), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(shared["w"] * shared["precision"], h.sum(0), rtol=1e-8, atol=1e-10)


def started(method: Method, fed: Federation, **options: object) -> Fit:
    return Fit(method, fed, Options(dtype=torch.float64, evaluate_every=100, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [{}, {"precision": "laplace", "scale": 0.7}, {"factors": "one", "server_lr": 1.0}])
def test_rounds_are_a_plain_loop_of_the_papers_formulas(settings: dict, small: Federation, net: Architecture) -> None:
    """Some report, of very different sizes, the same client more than once; natural parameters, as in the paper."""
    settings = {"scale": 30.0, "least": 1e-2, "server_lr": 0.8, **settings}
    method = FedEP(net, epochs=2, momentum=0.5, **settings, **COMMON)
    ready = started(method, small, rounds=4, participation=0.4, seed=2)
    d, keeps = net.d, "factors" not in settings
    zero = torch.zeros(d, dtype=torch.float64)
    w, h, precision, delta, total = ready.state.shared["w"].clone(), zero, zero, 1.0, 0.0
    own = dict.fromkeys(range(7), (zero, zero))
    for number in range(1, 5):
        ready.step()
        reported, changed, mu = ready.journal.status[-1].bool().nonzero().flatten().tolist(), [], w
        for j in reported:
            x, y = small.examples(small.train[j])
            n = len(x)
            power = 1 - n / max(total, n)
            ch, cp = (h - own[j][0], precision - own[j][1]) if keeps else (power * h, power * precision)
            chunk = ClientChunk(method, small, [j], number, 2, {}, {})
            u, v, ends = mu, zero, []
            for epoch in range(2):
                for batch in order_of(chunk, 0, 0, epoch).split(4):
                    slope = slope_at(net, u, x, y, batch) + (cp * u - ch) / n
                    v = 0.5 * v + slope / (1 + 0.05 * cp / n)
                    u = u - 0.05 * v
                ends.append(u)
            u = torch.stack(ends).mean(0)
            curvature = zero
            if "precision" in settings:
                curvature = sum(fisher_by_hand(net, u, x[i]) for i in range(n))
            tilted = cp + settings["scale"] * (1e-2 * n + curvature)
            change = delta * (tilted * u - h), delta * (tilted - precision)
            own[j] = own[j][0] + change[0], own[j][1] + change[1]
            changed.append((*change, n))
        h, precision = h + sum(c[0] for c in changed), precision + sum(c[1] for c in changed)
        w, delta = h / precision, min(1.0, settings["server_lr"] / len(reported))
        total = sum(c[2] for c in changed) * 7 / len(reported)
        torch.testing.assert_close(ready.state.shared["w"], w, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(ready.state.shared["precision"], precision, rtol=1e-8, atol=1e-9)
        assert float(ready.state.shared["damping"]) == pytest.approx(delta)
        if keeps:
            is_the_product(ready)
            torch.testing.assert_close(
                factors(ready)[0], torch.stack([own[j][0] for j in range(7)]), rtol=1e-7, atol=1e-8
            )


def fisher_by_hand(net: Architecture, w: Tensor, x: Tensor) -> Tensor:
    """Of one example: the expected square of the score, label by label."""
    p = net(w, x[None, None])[0, 0].softmax(-1)
    slopes = [slope_at(net, w, x[None], torch.tensor([k]), torch.tensor([0])) for k in range(len(p))]
    return sum(chance * slope.square() for chance, slope in zip(p, slopes, strict=True))


def test_the_first_round_is_fedavg(small: Federation, net: Architecture) -> None:
    """Nobody has said anything: a client's mode is its own, and weighs as many examples as it has."""
    for settings in ({"factors": "own"}, {"factors": "one"}):
        run = fitted(FedEP(net, epochs=2, burn=1, **settings, **COMMON), small, 1, participation=0.5)
        avg = fitted(FedAvg(net, epochs=2, **COMMON), small, 1, participation=0.5)
        torch.testing.assert_close(run.shared["w"], net.vector(avg.shared, avg.shared["w"]), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("settings", [{"least": 4.0}, {"precision": "laplace", "least": 0.2, "server_lr": 4.0}])
def test_on_a_linear_model_it_ends_at_the_pooled_mode(settings: dict, lines: Federation) -> None:
    """Whatever the precisions; the data's own are not diagonal."""
    ready = started(Exact(lines, **settings), lines, rounds=300)
    for _ in range(300):
        ready.step()
    torch.testing.assert_close(
        ready.state.shared["w"], Quadratics(lines).pooled(torch.ones(4).double()), rtol=1e-7, atol=1e-8
    )
    is_the_product(ready)


def orthogonal(fed: Federation) -> Federation:
    """The same sizes, with inputs whose second moments are diagonal in each client, and differ between clients."""
    x = fed.x.clone()
    for j, index in enumerate(fed.train):
        n = len(index)
        q, _ = torch.linalg.qr(torch.cat([torch.ones(n, 1, dtype=x.dtype), x[index]], 1))
        x[index] = q[:, 1:] * torch.tensor([1.0 + j, 2.0]).double() * n**0.5 / 2
    return replace(fed, x=x)


def test_where_gaussians_of_its_kind_are_exact_the_posterior_is(lines: Federation) -> None:
    """Mean and precision, after one round without damping, and after more."""
    fed = orthogonal(lines)
    quadratics = Quadratics(fed)
    total = sum(quadratics.A)
    assert (total - total.diagonal().diag()).abs().max() < 1e-10
    ready = started(Exact(fed, precision="laplace", least=1e-12), fed, rounds=3)
    for _ in range(3):
        ready.step()
        torch.testing.assert_close(ready.state.shared["precision"], total.diagonal(), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(
            ready.state.shared["w"], quadratics.pooled(torch.ones(4).double()), rtol=1e-8, atol=1e-9
        )
        is_the_product(ready)
        for j, precision in enumerate(factors(ready)[1]):
            torch.testing.assert_close(precision, quadratics.A[j].diagonal(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("settings", [{}, {"factors": "one"}, {"precision": "laplace"}])
def test_precisions_stay_above_zero(settings: dict, small: Federation, net: Architecture) -> None:
    """Of the posterior, of every factor that has been sent, and of every cavity; however large the steps."""
    ready = started(FedEP(net, server_lr=100.0, epochs=2, **settings, **COMMON), small, rounds=12, participation=0.4)
    for _ in range(12):
        ready.step()
        assert (ready.state.shared["precision"] > 0).all()
        assert ready.state.shared["w"].isfinite().all()
        if "factors" in settings:
            continue
        own = factors(ready)[1]
        told = own.abs().amax(1) > 0
        assert (own[told] > 0).all()
        assert (ready.state.shared["precision"] - own > -1e-9 * ready.state.shared["precision"]).all()
        is_the_product(ready)
    assert told.any() if "factors" not in settings else True


@pytest.mark.parametrize("what", ["lost", "skipped"])
def test_the_posterior_stays_the_product_when_messages_are_lost(
    what: str, small: Federation, net: Architecture
) -> None:
    ready = started(FedEP(net, epochs=1, **COMMON), small, rounds=3, quorum=7 if what == "skipped" else 1)
    ready.step()

    def damaged(messages: dict, clients: object) -> dict:
        lost = torch.tensor([j == 2 for j in clients])  # type: ignore[attr-defined]
        return {
            g: {k: v.masked_fill(lost.view(-1, *[1] * (v.dim() - 1)), torch.nan) for k, v in m.items()}
            for g, m in messages.items()
        }

    before = factors(ready)[0].clone()
    with intercepted(damaged):
        ready.step()
    moved = (factors(ready)[0] - before).abs().amax(1) > 1e-9
    assert moved.tolist() == [what != "skipped" and j != 2 for j in range(7)]
    is_the_product(ready)
    ready.step()
    is_the_product(ready)


def test_descent_finds_the_mode_of_the_tilted_posterior(lines: Federation) -> None:
    """With many whole steps; the cavity's precisions are up to a thousand times the data's."""
    exact, d = Exact(lines), 3
    method = FedEP(linear(lines), batch=WHOLE, epochs=400, burn=399, lr=0.05, momentum=0.8)
    rng = torch.Generator().manual_seed(0)
    wide = 10 ** (6 * torch.rand(d, generator=rng, dtype=torch.float64) - 1)
    chunk = rows_of(method, lines, precision=wide)
    own = torch.rand(4, 1, d, generator=rng, dtype=torch.float64) * wide
    chunk = chunk.put({"precision_j": own, "h_j": torch.randn(4, 1, d, generator=rng, dtype=torch.float64)})
    modes = [m.local()[0].run(chunk, 0).values for m in (method, exact)]
    torch.testing.assert_close(modes[0]["w"], modes[1]["w"], rtol=1e-8, atol=1e-10)


def test_small_clients_beside_a_narrow_cavity_do_not_diverge(small: Federation, net: Architecture) -> None:
    """Steps of 0.05 on a cavity of precision 10^6 beside two examples."""
    start = FedEP(net, **COMMON).begin(InitialWeights.for_network(net, 0)).double()
    method = FedEP(net, **COMMON)
    chunk = rows_of(method, small, precision=torch.full((net.d,), 1e6, dtype=torch.float64))
    after = method.local()[0].run(chunk, 0).values["w"]
    assert (after - start).abs().max() < 1e-3


def test_what_is_sent(small: Federation, net: Architecture) -> None:
    """Changes alone, of each client by itself, whoever is beside it; n_j only where it is asked for."""
    for factors_, more in (("own", set()), ("one", {"examples"})):
        method = FedEP(net, factors=factors_, **COMMON)
        chunk = method.local()[0].run(rows_of(method, small, precision=torch.ones(net.d).double()), 0)
        personal = {k: v.double() for k, v in method.personal(InitialWeights.for_network(net, 0)).items()}
        server = Rounds(method, small, chunk.shared, personal)
        messages = server.messages(chunk)
        assert set(messages) == {"posterior", *more}
        assert set(messages["posterior"]) == {"w", "precision"}
        fresh = rows_of(method, small, precision=torch.ones(net.d).double())
        for row in range(len(chunk.clients)):
            alone = server.messages(method.local()[0].run(fresh.take([row]), 0))
            for group, message in messages.items():
                for key, value in message.items():
                    torch.testing.assert_close(alone[group][key][0], value[row], rtol=1e-9, atol=1e-11)
        assert server.receive(messages, chunk.clients).all()


def test_the_fit_in_the_end_is_fedavg_fts(small: Federation, net: Architecture) -> None:
    settings = {"epochs": 1, "ft_epochs": 3, "ft_lr": 0.05, "batch": WHOLE, "momentum": 0.5}
    for scope in ("head", "all"):
        tuned = fitted(FedEP(net, scope=scope, **settings), small, 1)
        avg = fitted(FedAvgFT(net, scope=scope, **settings), small, 1)
        torch.testing.assert_close(tuned.personal["offset"], avg.personal["offset"], rtol=1e-8, atol=1e-10)
        assert tuned.personal["offset"].abs().amax() > 1e-3
    assert (fitted(FedEP(net, **COMMON), small, 1).personal["offset"] == 0).all()


@pytest.mark.parametrize("settings", [{"factors": "own"}, {"factors": "one"}])
def test_a_resumed_run_is_the_same(settings: dict, small: Federation, net: Architecture, tmp_path: Path) -> None:
    assert_resumed_is_the_same(FedEP(net, ft_epochs=1, epochs=2, **settings, **COMMON), small, tmp_path, 0.4)


def test_networks_and_settings_that_fit(lines: Federation, net: Architecture) -> None:
    with pytest.raises(UserError, match="burn=2 of epochs=2 passes leaves none"):
        FedEP(net, epochs=2, burn=2)
    run = fitted(FedEP(linear(lines), lr=0.01), lines, 2)  # a regression has a posterior, too
    assert run.shared["w"].isfinite().all()
    fed = pictures()
    norm = architecture("bncnn:2:5", fed)
    run, start = fitted(FedEP(norm, epochs=2), fed, 2), InitialWeights.for_network(norm, 0).base
    statistics = {k: v for k, v in run.shared.items() if k.endswith("running_var")}
    assert statistics
    assert all((v > 0).all() and (v - start[k]).abs().max() > 1e-6 for k, v in statistics.items())
