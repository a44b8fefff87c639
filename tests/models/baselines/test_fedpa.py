"""FedPA: samples of descent's iterates, their shrunk covariance, and the server's steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support.baselines import WHOLE, Quadratics, assert_resumed_is_the_same, fitted, linear, rows_of, slope_at
from support.federations import pictures
from support.methods import order_of
from torch import Tensor

from hierfl import Federation, UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.base import LocalStep
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.models import FedAvg, FedAvgFT, FedPA
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture

COMMON = {"lr": 0.05, "batch": 4}
PLAIN = {"server_lr": 1.0, "server_momentum": 0.0}


def iterates(net: Architecture, chunk: ClientChunk, w: Tensor, epochs: int, momentum: float) -> list[Tensor]:
    """Of each epoch of one client's descent, (steps, d)."""
    (j,) = chunk.clients
    x, y = chunk.federation.examples(chunk.federation.train[j])
    v, by_epoch = torch.zeros_like(w), []
    for epoch in range(epochs):
        passed = []
        for batch in order_of(chunk, 0, 0, epoch).split(4):
            v = momentum * v + slope_at(net, w, x, y, batch)
            w = w - 0.05 * v
            passed.append(w)
        by_epoch.append(torch.stack(passed))
    return by_epoch


def recursion(samples: Tensor, w: Tensor, rho: float) -> Tensor:
    """Delta by the paper's dynamic programme over samples (L, d), one after the other."""
    mean, delta, known = samples[0], w - samples[0], []
    for number, sample in enumerate(samples[1:], 2):
        u = sample - mean
        v = u.clone()
        for k, (before, product) in enumerate(known, 2):
            g = rho * (k - 1) / k
            v = v - g * (before @ u) / (1 + g * product) * before
        g, product = rho * (number - 1) / number, u @ v
        delta = delta - (1 + g * (number * (u @ delta) - product) / (1 + g * product)) * v / number
        known.append((v, product))
        mean = mean + u / number
    return delta * (1 + (len(samples) - 1) * rho)


@pytest.mark.parametrize("shrinkage", [0.01, 5.0])
def test_rounds_are_a_plain_loop_of_the_papers_formulas(shrinkage: float, small: Federation, net: Architecture) -> None:
    """Some report, of very different sizes; every sample is the mean of one pass, momentum goes on between them."""
    settings = {"epochs": 4, "burn": 1, "shrinkage": shrinkage, "server_lr": 0.2, "server_momentum": 0.5}
    method = FedPA(net, momentum=0.6, **settings, **COMMON)
    ready = Fit(method, small, Options(rounds=3, participation=0.4, dtype=torch.float64, evaluate_every=10, seed=1))
    velocity = torch.zeros(net.d, dtype=torch.float64)
    for number in range(1, 4):
        w = ready.state.shared["w"].clone()
        ready.step()
        total, weight = torch.zeros_like(w), 0
        for j in ready.journal.status[-1].bool().nonzero().flatten().tolist():
            chunk = ClientChunk(method, small, [j], number, 1, {}, {})
            samples = torch.stack([passed.mean(0) for passed in iterates(net, chunk, w, 4, 0.6)[1:]])
            n = len(small.train[j])
            total, weight = total + n * recursion(samples, w, shrinkage), weight + n
        assert weight
        velocity = 0.5 * velocity + total / weight
        torch.testing.assert_close(ready.state.shared["w"], w - 0.2 * velocity, rtol=1e-8, atol=1e-10)


def test_with_one_sample_it_is_fedavg_with_iterate_averaging(small: Federation, net: Architecture) -> None:
    method = FedPA(net, epochs=3, burn=2, momentum=0.0, **PLAIN, **COMMON)
    run, w, total = fitted(method, small, 1), method.begin(InitialWeights.for_network(net, 0)).double(), 0
    for j in range(7):
        chunk = ClientChunk(method, small, [j], 1, 0, {}, {})
        total = total + len(small.train[j]) * iterates(net, chunk, w, 3, 0.0)[2].mean(0)
    torch.testing.assert_close(run.shared["w"], total / 74, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("settings", [{"batch": WHOLE, "epochs": 1, "burn": 0}, {"batch": 4, "plain_rounds": 4}])
def test_where_no_pass_has_a_second_iterate_and_in_plain_rounds_it_is_fedavg(
    settings: dict, small: Federation, net: Architecture
) -> None:
    epochs = settings.get("epochs", 5)
    run = fitted(FedPA(net, lr=0.05, **settings, **PLAIN), small, 4, participation=0.5)
    avg = fitted(FedAvg(net, lr=0.05, epochs=epochs, batch=settings["batch"]), small, 4, participation=0.5)
    torch.testing.assert_close(run.shared["w"], net.vector(avg.shared, avg.shared["w"]), rtol=1e-8, atol=1e-10)


def test_plain_rounds_are_the_first(small: Federation, net: Architecture) -> None:
    runs = [fitted(FedPA(net, plain_rounds=k, **COMMON), small, 2).shared["w"] for k in (0, 1, 2)]
    assert (runs[0] - runs[1]).abs().max() > 1e-4
    assert (runs[1] - runs[2]).abs().max() > 1e-4


@dataclass(frozen=True)
class ExactSamples:
    """Samples with the mean and covariance of exp(-F_j), quadratics, in FedPA's step.

    With ``shrunk`` it is the shrunk covariance that is exact; otherwise their own.
    """

    method: FedPA
    quadratics: Quadratics
    shrunk: bool
    trains = ("w", "base")

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        samples = []
        for j in chunk.clients:
            A, b, n = self.quadratics.A[j], self.quadratics.b[j], self.quadratics.n[j]
            d = len(b)
            share = 1 / (1 + (2 * d - 1) * self.method.settings.shrinkage) if self.shrunk else 0.0
            sigma = ((A / n).inverse() - share * torch.eye(d, dtype=A.dtype)) / (1 - share)
            # 2 d points, at the ends of its axes
            ends = ((2 * d - 1) / 2) ** 0.5 * torch.linalg.cholesky(sigma).T
            samples.append(torch.linalg.solve(A, b) + torch.cat([ends, -ends]))
        chunk = chunk.own(["w"])
        return chunk.put({"w": self.method.stepped(torch.stack(samples), chunk).unsqueeze(1)})


def ends_at(fed: Federation, shrinkage: float, shrunk: bool) -> Tensor:
    """Of a fit with exact samples; whatever the server's steps."""
    quadratics = Quadratics(fed)

    class Exact(FedPA):
        def local(self) -> list[LocalStep]:
            return [ExactSamples(self, quadratics, shrunk)]

    slopes = [A / n for A, n in zip(quadratics.A, quadratics.n, strict=True)]
    longest = max(float(torch.linalg.eigvalsh(slope).amax()) for slope in slopes)
    method = Exact(linear(fed), shrinkage=shrinkage, server_lr=1 / longest, server_momentum=0.8)
    return fitted(method, fed, 200).shared["w"]


def test_with_exact_samples_it_ends_at_the_pooled_mode(lines: Federation) -> None:
    """Where FedAvg ends elsewhere (test_scaffold)."""
    pooled = Quadratics(lines).pooled(torch.ones(4).double())
    torch.testing.assert_close(ends_at(lines, 20.0, shrunk=True), pooled, rtol=1e-9, atol=1e-10)


def test_with_ever_more_trust_in_exact_samples_it_tends_to_the_pooled_mode(lines: Federation) -> None:
    """What is left is what shrinkage adds to the covariances: 1 / (1 + (L - 1) rho)."""
    pooled = Quadratics(lines).pooled(torch.ones(4).double())
    errors = [float((ends_at(lines, rho, shrunk=False) - pooled).abs().max()) for rho in (1e2, 1e4)]
    assert 50 < errors[0] / errors[1] < 150
    assert errors[1] < 1e-3


def test_a_message_does_not_depend_on_who_else_is_in_the_plate(small: Federation, net: Architecture) -> None:
    method = FedPA(net, shrinkage=1.0, **COMMON)
    chunk = rows_of(method, small)
    together = method.local()[0].run(chunk, 0).values["w"]
    for row in range(len(chunk.clients)):
        alone = method.local()[0].run(chunk.take([row]), 0).values["w"]
        torch.testing.assert_close(alone[0], together[row], rtol=1e-10, atol=1e-12)
    assert torch.equal(chunk.shared["w"], rows_of(method, small).shared["w"])


def test_the_fit_in_the_end_is_fedavg_fts(small: Federation, net: Architecture) -> None:
    settings = {"epochs": 1, "ft_epochs": 3, "ft_lr": 0.05, "batch": WHOLE}
    for scope in ("head", "all"):
        tuned = fitted(FedPA(net, burn=0, scope=scope, **settings, **PLAIN), small, 2)
        avg = fitted(FedAvgFT(net, scope=scope, **settings), small, 2)
        torch.testing.assert_close(tuned.personal["offset"], avg.personal["offset"], rtol=1e-8, atol=1e-10)
        assert tuned.personal["offset"].abs().amax() > 1e-3
    nothing = fitted(FedPA(net, **COMMON), small, 2)
    assert (nothing.personal["offset"] == 0).all()
    assert nothing.evaluations[-1]["pm_nll"] == pytest.approx(nothing.evaluations[-1]["gm_nll"], abs=0.2)
    with pytest.raises(UserError, match=r"ft_lr=0\.1 changes nothing with ft_epochs=0"):
        FedPA(net, ft_lr=0.1)


def test_a_resumed_run_is_the_same(small: Federation, net: Architecture, tmp_path: Path) -> None:
    assert_resumed_is_the_same(FedPA(net, ft_epochs=1, **COMMON), small, tmp_path, 0.4)


def test_networks_and_settings_that_fit(lines: Federation, net: Architecture) -> None:
    with pytest.raises(UserError, match="burn=2 of epochs=2 passes leaves none that gives a sample"):
        FedPA(net, epochs=2, burn=2)
    with pytest.raises(UserError, match="burn=1 of epochs=0"):
        FedPA(net, epochs=0)
    run = fitted(FedPA(linear(lines), lr=0.01), lines, 2)  # a regression has a posterior, too
    assert run.shared["w"].isfinite().all()
    fed = pictures()
    norm = architecture("bncnn:2:5", fed)
    run, start = fitted(FedPA(norm, epochs=2, server_momentum=0.9), fed, 3), InitialWeights.for_network(norm, 0).base
    statistics = {k: v for k, v in run.shared.items() if k.endswith("running_var")}
    assert statistics
    assert all((v > 0).all() and (v - start[k]).abs().max() > 1e-6 for k, v in statistics.items())
