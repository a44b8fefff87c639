"""QLSD: a Langevin chain at the server, gradients compressed beside what is remembered of them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from support.baselines import Quadratics, assert_resumed_is_the_same, fitted, linear, rows_of, slope_at
from support.federations import pictures
from support.methods import order_of
from support.rounds import Rounds
from torch import Tensor

from hierfl import Federation, UserError
from hierfl.arviz_data import group_names
from hierfl.experiments.run_folder.diagnostics import chain_mixing
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.inference.server.receiver import Receiver
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.rules.langevin import LangevinStep
from hierfl.models import QLSD
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture
from hierfl.rng import normals

PLAIN = {"levels": 0, "batch": 0, "memory": False, "temperature": 0.0}


def quantised(v: Tensor, u: Tensor, levels: int) -> Tensor:
    """QSGD's formula: |v| sign(v_k) times |v_k| / |v| rounded to a level, up with the probability of what is left."""
    share = v.abs() / v.norm() * levels
    return v.norm() * v.sign() * (share.floor() + (u < share.frac())) / levels


def test_without_noise_and_quantiser_it_is_gradient_ascent_of_the_pooled_log_posterior(
    small: Federation, net: Architecture
) -> None:
    """The prior counts once, however many clients there are."""
    method = QLSD(net, step_size=1e-3, prior_precision=7.0, **PLAIN)
    run = fitted(method, small, 6)
    w = fitted(method, small, 0).shared["w"]
    x, y = (torch.cat(part) for part in zip(*[small.examples(t) for t in small.train], strict=True))
    for _ in range(6):
        w = w - 1e-3 * (len(y) * slope_at(net, w, x, y, torch.arange(len(y))) + 7.0 * w)
    torch.testing.assert_close(run.shared["w"], w, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("scope", ["head", "all"])
def test_the_fit_in_the_end_begins_at_w_and_moves_every_draw(scope: str, small: Federation, net: Architecture) -> None:
    """It is never sent, and says nothing to the chain."""
    common = {"step_size": 1e-3, "burn": 1, "keep": 3, "batch": 0}
    method = QLSD(net, scope=scope, ft_epochs=4, ft_lr=0.05, ft_momentum=0.5, **common)
    run, alone = fitted(method, small, 4), fitted(QLSD(net, **common), small, 4)
    assert all(torch.equal(v, run.shared[k]) for k, v in alone.shared.items())
    assert torch.equal(run.personal["memory"], alone.personal["memory"])
    w, j, d = run.shared["w"], 1, run.personal["offset"].shape[-1]
    assert d == (net.d if scope == "all" else 18)
    x, y = small.examples(small.train[j])
    offset, speed = torch.zeros_like(w), torch.zeros_like(w)
    for _ in range(4):
        slope = slope_at(net, w + offset, x, y, torch.arange(len(y)))
        slope[: net.d - d] = 0
        speed = 0.5 * speed + slope
        offset = offset - 0.05 * speed
    torch.testing.assert_close(run.personal["offset"][j], offset[-d:], rtol=1e-9, atol=1e-11)
    x = small.examples(small.test[j])[0]
    each = torch.stack([net(draw + offset, x[None])[0].softmax(-1) for draw in run.shared["draws"][0]]).mean(0)
    torch.testing.assert_close(run.predict(x, small.ids[j], draws=3).double(), each, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("memory", [True, False])
def test_a_round_is_a_plain_loop_of_the_papers_formulas(memory: bool, small: Federation, net: Architecture) -> None:
    """Minibatches as of all data, quantised changes, memories of those who report, absent clients made up for."""
    gamma, s = 1e-3, 3
    method = QLSD(net, step_size=gamma, batch=5, levels=s, memory=memory, prior_precision=2.0)
    rate = 1 / (1 + min(net.d / s**2, net.d**0.5 / s)) if memory else 0.0
    assert method.rate == pytest.approx(rate, rel=1e-12)
    ready = Fit(method, small, Options(rounds=4, participation=0.5, dtype=torch.float64, evaluate_every=10))
    own = [torch.zeros(net.d, dtype=torch.float64) for _ in range(small.clients)]
    for r in range(1, 5):
        w = ready.state.shared["w"].clone()
        ready.step()
        reported = ready.journal.status[-1].bool().nonzero().flatten().tolist()
        assert 0 < len(reported) < small.clients
        before, total = sum(own), torch.zeros_like(w)
        for j in reported:
            x, y = small.examples(small.train[j])
            chunk = ClientChunk(method, small, [j], r, 0, {}, {})
            gradient = -len(y) * slope_at(net, w, x, y, order_of(chunk, 0, 0, 0)[:5])
            drawn = chunk.noise("compression", 1).normal("compression/w", None, torch.Size([net.d])).flatten()
            # Rounded up where the uniform and what is left pass 1: with the probability of what is left.
            sent = quantised(gradient - own[j], 1 - torch.special.ndtr(drawn), s)
            own[j] = own[j] + rate * sent
            total = total + sent
        xi = normals(w.shape, 0, r, "server", "w", dtype=torch.float64)
        slope = before + small.clients / len(reported) * total - 2.0 * w
        torch.testing.assert_close(
            ready.state.shared["w"], w + gamma * slope + math.sqrt(2 * gamma) * xi, rtol=1e-8, atol=1e-10
        )
        torch.testing.assert_close(ready.fitted().personal["memory"], torch.stack(own), rtol=1e-8, atol=1e-10)


def test_its_stationary_law_on_a_gaussian_is_that_of_unadjusted_langevin_steps(lines: Federation) -> None:
    """Mean of the pooled posterior; covariance C = (I - g A) C (I - g A) + 2 g I, and not A^-1."""
    quadratics, d = Quadratics(lines), 3
    A = sum(quadratics.A) + 2.0 * torch.eye(d, dtype=torch.float64)
    b = sum(quadratics.b)
    values, vectors = torch.linalg.eigh(A)
    gamma = float(0.9 / values.max())
    mean = torch.linalg.solve(A, b)
    along = 1 / (values * (1 - gamma * values / 2))  # of C, where A^-1 has 1 / values
    # what the clients' own steps and the server make of a round is this map
    method = QLSD(linear(lines), step_size=gamma, prior_precision=2.0, **{**PLAIN, "temperature": 1.0})
    ready = Fit(method, lines, Options(rounds=3, dtype=torch.float64, evaluate_every=10))
    for r in range(1, 4):
        w = ready.state.shared["w"].clone()
        ready.step()
        xi = normals(w.shape, 0, r, "server", "w", dtype=torch.float64)
        expected = w - gamma * (A @ w - b) + math.sqrt(2 * gamma) * xi
        torch.testing.assert_close(ready.state.shared["w"], expected, rtol=1e-9, atol=1e-11)
    # whose law is this: of 400 chains, which begin as draws of it
    rule, memory, chain = LangevinStep("w/change", gamma), {}, []
    begin = torch.randn(400, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    w = mean + begin * along.sqrt() @ vectors.T
    for number in range(200):
        context = AggregationContext(
            4, torch.tensor(4.0), number, lambda names: {"w": -2.0 * w}, memory, seed=5  # noqa: B023
        )  # fmt: skip
        w = rule.update({"w": w}, {"w": b - (w @ A - 2.0 * w)}, context)["w"]
        chain.append((w - mean) @ vectors)
    draws = torch.stack(chain[100:], 1)  # (chains, rounds, d)
    for statistic, truth in ((draws, torch.zeros(d)), (draws.square(), along)):
        parts = statistic.mean(1)
        assert ((parts.mean(0) - truth).abs() < 4 * parts.std(0) / 20).all()
    variance = draws.square().mean((0, 1))
    assert variance[-1] > 1.5 / values[-1]  # of the stiffest direction twice that of the posterior, nearly


@pytest.mark.slow
def test_memories_take_out_the_noise_of_quantiser_and_absence(lines: Federation) -> None:
    """One level, half of the clients, no temperature: the pooled mode is found, and without memories it is not."""
    quadratics = Quadratics(lines)
    A = sum(quadratics.A) + torch.eye(3, dtype=torch.float64)
    mode = torch.linalg.solve(A, sum(quadratics.b))
    gaps = []
    for memory in (True, False):
        method = QLSD(
            linear(lines), step_size=4e-4, levels=1, batch=0, memory=memory, temperature=0.0, prior_precision=1.0
        )
        run = fitted(method, lines, 200, participation=0.5)
        gaps.append(float((run.shared["w"] - mode).abs().max()))
    assert gaps[0] < 1e-6
    assert gaps[1] > 1e-3


def noise_free(fed: Federation, net: Architecture, **options: object) -> Fit:
    method = QLSD(net, step_size=1e-4, levels=2)
    return Fit(method, fed, Options(rounds=6, dtype=torch.float64, **options))


def together(ready: Fit) -> None:
    """The server's memory is the sum of all clients'."""
    own = ready.fitted().personal["memory"]
    torch.testing.assert_close(ready.state.rule_state["w"]["memory"], own.sum(0), rtol=1e-9, atol=1e-9)


def test_memories_begin_empty_and_stay_together_whoever_reports(small: Federation, net: Architecture) -> None:
    ready = noise_free(small, net, participation=0.4)
    assert (ready.fitted().personal["memory"] == 0).all()
    for _ in range(5):
        before = ready.fitted().personal["memory"].clone()
        ready.step()
        moved = (ready.fitted().personal["memory"] - before).abs().amax(1) > 0
        assert moved.tolist() == ready.journal.status[-1].bool().tolist()
        together(ready)


@pytest.mark.parametrize("what", ["rejected", "skipped", "diverged"])
def test_memories_stay_together_when_a_message_is_lost(
    what: str, small: Federation, net: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = noise_free(small, net, quorum=7 if what == "skipped" else 1)
    ready.step()
    add = Receiver.add

    def damaged(receiver: Receiver, messages: dict, clients: list, healthy: Tensor | None = None) -> Tensor:
        lost = torch.tensor([j == 2 for j in clients])
        if what == "diverged":
            return add(receiver, messages, clients, ~lost if healthy is None else healthy & ~lost)
        spoilt = {g: {k: v.masked_fill(lost[:, None], 255) for k, v in m.items()} for g, m in messages.items()}
        return add(receiver, spoilt, clients, healthy)  # bytes whose norm is not a number

    monkeypatch.setattr(Receiver, "add", damaged)
    before, w = ready.fitted().personal["memory"].clone(), ready.state.shared["w"].clone()
    ready.step()
    moved = (ready.fitted().personal["memory"] - before).abs().amax(1) > 0
    assert moved.tolist() == [what != "skipped" and j != 2 for j in range(7)]
    assert torch.equal(w, ready.state.shared["w"]) == (what == "skipped")
    together(ready)


def test_what_is_sent_is_the_quantised_change_alone(small: Federation, net: Architecture) -> None:
    method = QLSD(net, levels=256)
    chunk = rows_of(method, small)
    server = Rounds(method, small, chunk.shared, {k: v[0, 0] for k, v in chunk.values.items()})
    for number, step in enumerate(method.local()):
        chunk = step.run(chunk, number)
    messages = server.messages(chunk)
    assert {g: set(m) for g, m in messages.items()} == {"w": {"w"}}
    assert messages["w"]["w"].dtype is torch.uint8
    assert messages["w"]["w"].shape[1] == 8 + math.ceil(net.d * 10 / 8)  # the norm, and ten bits each
    plain = Rounds(QLSD(net, levels=0), small, chunk.shared, {k: v[0, 0] for k, v in chunk.values.items()})
    torch.testing.assert_close(plain.messages(chunk)["w"]["w"], chunk.values["w/change"].squeeze(1))


def test_what_predicts_are_the_draws_that_were_kept(small: Federation, net: Architecture) -> None:
    """At their mean, averaged over them; for everybody, the global model and who was never seen alike."""
    method = QLSD(net, step_size=1e-3, burn=3, thin=2, keep=3)
    ready = Fit(method, small, Options(rounds=10, dtype=torch.float64, draws=3, evaluate_every=100))
    seen = []
    for _ in range(10):
        seen.append(ready.state.shared["w"].clone())  # as each round begins
        ready.step()
    kept = torch.stack(seen)[[5, 7, 9]]
    assert torch.equal(ready.state.shared["draws"][0], kept)
    run = fitted(method, small, 10, draws=3)
    x = small.examples(small.test[4])[0]
    at_mean = net(kept.mean(0), x[None])[0].softmax(-1)
    for predictions in (run.predict(x, small.ids[4]), run.predict_new_client(x, draws=0)):
        torch.testing.assert_close(predictions.double(), at_mean, rtol=1e-9, atol=1e-12)
    averaged = torch.stack([net(w, x[None])[0].softmax(-1) for w in kept]).mean(0)
    for predictions in (run.predict(x, small.ids[4], draws=3), run.predict_new_client(x, draws=3)):
        torch.testing.assert_close(predictions.double(), averaged, rtol=1e-9, atol=1e-12)
    data = run.posterior()
    draws = data["posterior"]["w_j"].values  # (chain, draw, client, d)
    assert draws.shape == (1, 3, 7, net.d)
    assert all(np.array_equal(draws[0, :, j], kept.numpy()) for j in range(7))
    assert "prior" not in group_names(data)
    assert "lp" not in getattr(data, "sample_stats", {})
    with pytest.raises(UserError, match="nothing that a new client could learn"):
        run.predict_new_client(x, given=(x.numpy(), np.zeros(len(x), dtype=np.int64)))


def test_draws_that_come_again_do_not_count(small: Federation, net: Architecture) -> None:
    """While places are left; not in a mean, not in averages, not in posterior.nc, nor in what is said of the chain."""
    settings: dict = {"step_size": 1e-3, "burn": 2, "thin": 1}
    few, room = (fitted(QLSD(net, keep=keep, **settings), small, 12, draws=4) for keep in (10, 400))
    assert few.shared["draws"].shape == (1, 10, net.d)
    assert torch.equal(room.shared["draws"], few.shared["draws"])
    x = small.examples(small.test[4])[0]
    for draws in (0, 4):
        torch.testing.assert_close(
            room.predict(x, small.ids[4], draws=draws), few.predict(x, small.ids[4], draws=draws), rtol=1e-9, atol=1e-12
        )
    kept, other = (run.posterior()["posterior"]["w_j"].values for run in (few, room))
    assert np.array_equal(kept, other)
    tables = [pd.DataFrame(index=range(7)) for _ in range(2)]
    assert chain_mixing(few, tables[0]) == chain_mixing(room, tables[1])
    assert tables[0].equals(tables[1])
    none = fitted(QLSD(net, step_size=1e-3, burn=5), small, 3)
    assert chain_mixing(none, tables[0])["kept_draws"] == 1
    assert none.posterior()["posterior"].sizes["draw"] == 1


def test_a_resumed_run_is_the_same(small: Federation, net: Architecture, tmp_path: Path) -> None:
    assert_resumed_is_the_same(QLSD(net, step_size=1e-4, burn=1, keep=2), small, tmp_path, 0.6)


def test_networks_that_fit(small: Federation) -> None:
    fed = pictures()
    with pytest.raises(UserError, match="qlsd has no running statistics of batch norm"):
        QLSD(architecture("bncnn:2:5", fed))
    for net, data in ((architecture("cnn:2,3:6", fed), fed), (architecture("mlp:6,dropout=0.5", small), small)):
        run = fitted(QLSD(net, step_size=1e-4), data, 2)
        assert all(v.isfinite().all() for v in run.shared.values())
