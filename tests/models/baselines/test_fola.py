"""FOLA: Laplace approximations, exact where losses are diagonal quadratics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.baselines import NOISE, WHOLE, assert_resumed_is_the_same, fitted, linear, rows_of, slope_at
from support.federations import pictures
from support.methods import order_of
from support.rounds import Rounds
from torch import Tensor
from torch.nn.functional import cross_entropy

from hierfl import Federation, UserError
from hierfl.arviz_data import group_names
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.models import FOLA
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture

#: local work that is an exact minimum, and a Lambda of the data alone
EXACT = {"epochs": 130, "lr": 0.2, "batch": 20, "clip": 1e9, "fisher": "model", "epsilon": 1e-12}


class Diagonal:
    """Four linear regressions whose designs are orthogonal: mean losses sum_k H_jk (w_k - m_jk)^2 / 2 + constant."""

    def __init__(self) -> None:
        rng, xs, ys, who = np.random.default_rng(3), [], [], []
        for j, (a, b, times) in enumerate([(0.8, 1.4, 1), (1.3, 0.7, 3), (1.0, 1.0, 2), (0.7, 1.2, 5)]):
            x = np.tile([[a, 0.0], [-a, 0.0], [0.0, b], [0.0, -b]], (times, 1))
            xs.append(x)
            ys.append(x @ rng.normal(size=2) + rng.normal() + NOISE * rng.normal(size=len(x)))
            who += [j] * len(x)
        self.fed = Federation.from_arrays(
            np.concatenate(xs), np.concatenate(ys), np.array(who), test=0.0, task="regression"
        ).to(dtype=torch.float64)
        self.n = torch.tensor([float(len(t)) for t in self.fed.train], dtype=torch.float64)
        pairs = []
        for index in self.fed.train:
            x, y = self.fed.examples(index)
            x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
            A, b = x.T @ x / len(x) / NOISE**2, x.T @ y / len(x) / NOISE**2
            assert (A - A.diagonal().diag()).abs().max() < 1e-12
            pairs.append((A.diagonal(), b / A.diagonal()))
        self.H, self.m = (torch.stack(part) for part in zip(*pairs, strict=True))  # (J, d)

    @property
    def mode(self) -> Tensor:
        weight = self.n[:, None] * self.H
        return (weight * self.m).sum(0) / weight.sum(0)


@pytest.fixture
def diagonal() -> Diagonal:
    return Diagonal()


def test_one_round_finds_the_pooled_posterior_of_diagonal_quadratics(diagonal: Diagonal) -> None:
    """Mode and precision, clients of unequal sizes and curvatures; FedAvg's mean of the minima is elsewhere."""
    run = fitted(FOLA(linear(diagonal.fed), **EXACT, sigma=1e9), diagonal.fed, 1)
    torch.testing.assert_close(run.shared["w.mean"], diagonal.mode, rtol=1e-9, atol=1e-10)
    plain = (diagonal.n[:, None] * diagonal.m).sum(0) / diagonal.n.sum()
    assert (plain - diagonal.mode).abs().max() > 0.01
    draws = run.posterior(draws=4000)["posterior"]["w_j"].values.reshape(-1, 3)  # (draws x clients, d)
    spread = (diagonal.n[:, None] * diagonal.H).sum(0).rsqrt()
    error = 4.5 / len(draws) ** 0.5
    assert (np.abs(draws.mean(0) - diagonal.mode.numpy()) < error * spread.numpy()).all()
    assert (np.abs(draws.std(0) / spread.numpy() - 1) < error).all()
    assert float(run.shared["w.examples"]) == float(diagonal.n.sum())


def test_later_rounds_are_the_papers_recursion(diagonal: Diagonal) -> None:
    """With exact local minima, some of the clients: Lambda counts the data of every round, c / r weighs it."""
    c, d = 0.7, diagonal
    method = FOLA(linear(d.fed), **EXACT, c=c)
    ready = Fit(method, d.fed, Options(rounds=5, participation=0.6, dtype=torch.float64, evaluate_every=10))
    precision, w = torch.full((3,), 1e-12, dtype=torch.float64), ready.state.shared["w.mean"].clone()
    sizes = []
    for r in range(1, 6):
        ready.step()
        reported = ready.journal.status[-1].bool()
        pull = c / r * precision
        theta = (d.H * d.m + pull * w) / (d.H + pull)
        a = torch.where(reported, d.n, 0.0)[:, None]
        own = precision + d.H
        w = (a * own * theta).sum(0) / (a * own).sum(0)
        precision = (a * own).sum(0) / a.sum()
        sizes.append(float(a.sum() * d.fed.clients / reported.sum()))
        torch.testing.assert_close(ready.state.shared["w.mean"], w, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(ready.state.shared["w.precision"], precision, rtol=1e-9, atol=1e-13)
        assert float(ready.state.shared["w.rounds"]) == r
        assert float(ready.state.shared["w.examples"]) == pytest.approx(sum(sizes) / r, rel=1e-12)
    assert len(set(sizes)) > 1


def test_clients_of_one_curvature_stay_at_the_mode_and_others_leave_it(diagonal: Diagonal) -> None:
    """What repeated rounds cost: the fixed point is the pooled mode where clients' curvatures agree, else near it."""
    run = fitted(FOLA(linear(diagonal.fed), **EXACT), diagonal.fed, 6)
    assert 1e-4 < (run.shared["w.mean"] - diagonal.mode).abs().max() < 0.2
    # The bias has the curvature 1 / NOISE^2 at all of them.
    torch.testing.assert_close(run.shared["w.mean"][2], diagonal.mode[2], rtol=1e-9, atol=1e-10)


def scores(net: Architecture, w: Tensor, x: Tensor, y: Tensor, labels: str) -> Tensor:
    """Mean over examples of the squared gradients, by plain autograd, one example and one label after the other."""
    total = torch.zeros_like(w)
    for x_i, y_i in zip(x, y, strict=True):
        p = net(w, x_i[None, None])[0, 0].softmax(-1)
        for k in [int(y_i)] if labels == "data" else range(len(p)):
            u = w.clone().requires_grad_()
            (g,) = torch.autograd.grad(cross_entropy(net(u, x_i[None, None])[0], torch.tensor([k])), u)
            total += (1.0 if labels == "data" else p[k]) * g.square()
    return total / len(y)


@pytest.mark.parametrize(("labels", "c", "clip"), [("data", 0.7, 1.5), ("model", 0.7, 10.0), ("data", 0.0, 10.0)])
def test_a_round_is_a_plain_loop_of_the_papers_formulas(
    labels: str, c: float, clip: float, small: Federation, net: Architecture
) -> None:
    """Minibatches, momentum, clipped gradients, unequal clients of which some report; two rounds."""
    common = {"epochs": 2, "lr": 0.05, "batch": 4, "momentum": 0.5}
    method = FOLA(net, c=c, clip=clip, fisher=labels, epsilon=1e-2, server_lr=0.8, **common)
    ready = Fit(method, small, Options(rounds=2, participation=0.5, dtype=torch.float64, evaluate_every=10))
    shortened = 0
    for r in (1, 2):
        before = {k: v.clone() for k, v in ready.state.shared.items()}
        w, precision = before["w.mean"], before["w.precision"]
        ready.step()
        reported = ready.journal.status[-1].bool().nonzero().flatten().tolist()
        assert 0 < len(reported) < small.clients
        top, bottom, examples = torch.zeros_like(w), torch.zeros_like(w), 0
        for j in reported:
            x, y = small.examples(small.train[j])
            chunk = ClientChunk(method, small, [j], r, 0, {}, {})
            v, moment = w, torch.zeros_like(w)
            for epoch in range(2):
                for batch in order_of(chunk, 0, 0, epoch).split(4):
                    slope = slope_at(net, v, x, y, batch) + c / r * precision * (v - w)
                    shortened += int(slope.norm() > clip)
                    moment = 0.5 * moment + slope * min(1.0, clip / float(slope.norm()))
                    v = v - 0.05 * moment
            own = precision + scores(net, v, x, y, labels)
            top, bottom, examples = top + len(y) * own * v, bottom + len(y) * own, examples + len(y)
        torch.testing.assert_close(ready.state.shared["w.mean"], 0.2 * w + 0.8 * top / bottom, rtol=1e-8, atol=1e-11)
        torch.testing.assert_close(ready.state.shared["w.precision"], bottom / examples, rtol=1e-8, atol=1e-11)
    assert (shortened > 0) == (clip < 10)


def test_information_does_not_depend_on_the_size_of_minibatches(small: Federation, net: Architecture) -> None:
    """A minibatch's squared mean gradient would be smaller, the larger it is."""
    information = []
    for batch in (1, WHOLE):
        method = FOLA(net, lr=1e-300, batch=batch)
        chunk = rows_of(method, small)
        information.append(method.information(method.local()[0].run(chunk, 0)))
    torch.testing.assert_close(information[0], information[1], rtol=1e-12, atol=0)
    w = chunk.shared["w.mean"]
    for row, j in enumerate(chunk.clients):
        x, y = small.examples(small.train[j])
        assert (slope_at(net, w, x, y, torch.arange(len(y))).square() <= information[0][row] + 1e-12).all()


@pytest.mark.parametrize("labels", ["data", "model"])
def test_information_in_pieces_is_the_same(
    labels: str, small: Federation, net: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = FOLA(net, fisher=labels)
    chunk = method.local()[0].run(rows_of(method, small), 0)
    whole = method.information(chunk)
    for limit in (1, 5 * small.clients * net.d):
        monkeypatch.setattr("hierfl.inference.clients.squared_scores.MAX_NUMBERS_AT_ONCE", limit)
        torch.testing.assert_close(method.information(chunk), whole, rtol=1e-12, atol=1e-15)
    alone = torch.cat([method.information(chunk.part(k, k + 1)) for k in range(small.clients)])  # nothing is padded
    torch.testing.assert_close(alone, whole, rtol=1e-12, atol=1e-15)


def test_a_weight_of_which_no_data_say_anything_stays_where_it_is(small: Federation) -> None:
    """Where Lambda is its epsilon the mode is the mean of equal copies, and not drawn to zero."""
    small.x[:, 1] = 0.0
    method = FOLA(architecture("linear", small), init_scale=1.0)
    begun = fitted(method, small, 0).shared["w.mean"]
    run = fitted(method, small, 3)
    silent = torch.zeros(3, 4, dtype=torch.bool)
    silent[:, 1] = True
    silent = torch.cat([silent.flatten(), torch.zeros(3, dtype=torch.bool)])
    torch.testing.assert_close(run.shared["w.mean"][silent], begun[silent], rtol=1e-9, atol=0)
    assert (run.shared["w.mean"] - begun)[~silent].abs().min() > 1e-4
    spread = run.posterior(draws=2000)["posterior"]["w_j"].values.reshape(-1, 15).std(0)
    assert np.abs(spread[silent.numpy()] / 0.1 - 1).max() < 0.05  # sigma


def test_what_predicts_is_the_posterior_of_w(small: Federation, net: Architecture) -> None:
    """The mean for everybody, a global model and who was never seen; draws of N(w, P^-1), averaged."""
    method = FOLA(net, epochs=2, lr=0.05, scale=0.5, sigma=0.3)
    run = fitted(method, small, 3)
    w, s = run.shared["w.mean"], run.shared
    spread = (0.5 * s["w.examples"] * s["w.precision"] / 3 + 0.3**-2).rsqrt()
    x = small.examples(small.test[1])[0]
    at_mean = net(w, x[None])[0].softmax(-1)
    for predictions in (run.predict(x, small.ids[1]), run.predict_new_client(x, draws=0)):
        torch.testing.assert_close(predictions.double(), at_mean, rtol=1e-9, atol=1e-12)
    many = method.shared_draws(s, 20_000)["w.mean"].flatten(0, 2)
    assert ((many - w).mean(0).abs() < 5 * spread / 20_000**0.5).all()
    assert ((many.std(0) / spread - 1).abs() < 5 / 40_000**0.5).all()
    few = method.shared_draws(s, 7)["w.mean"].flatten(0, 2)
    averaged = torch.stack([net(draw, x[None])[0].softmax(-1) for draw in few]).mean(0)
    torch.testing.assert_close(run.predict(x, small.ids[1], draws=7).double(), averaged, rtol=1e-9, atol=1e-12)
    kept = run.posterior(draws=7)  # of everybody one w; what it is drawn from has seen the data, and is no prior
    np.testing.assert_allclose(kept.posterior["w_j"].values[0], few.numpy()[:, None].repeat(7, 1), rtol=1e-12)
    assert "prior" not in group_names(kept)
    assert "lp" not in getattr(kept, "sample_stats", {})
    row = run.evaluations[-1]
    assert row["pm_draws_nll"] is not None
    assert row["pm_draws_nll"] != row["pm_nll"]
    with pytest.raises(UserError, match="nothing that a new client could learn"):
        run.predict_new_client(x, given=(x.numpy(), np.zeros(len(x), dtype=np.int64)))


def test_a_precision_that_is_none_is_rejected(small: Federation, net: Architecture) -> None:
    method = FOLA(net)
    chunk = method.local()[0].run(rows_of(method, small), 0)
    server = Rounds(method, small, chunk.shared, {})
    for bad in (0.0, -1.0):
        messages = server.messages(chunk)
        assert messages["w"].keys() == {"w.mean", "w.precision", "weight"}
        messages["w"]["w.precision"][2, 5] = bad
        server.begin()
        assert server.receive(messages, chunk.clients).tolist() == [row != 2 for row in range(7)]


def test_a_resumed_run_is_the_same(small: Federation, net: Architecture, tmp_path: Path) -> None:
    assert_resumed_is_the_same(FOLA(net, epochs=1), small, tmp_path, 0.6)


def test_networks_that_fit(small: Federation) -> None:
    fed = pictures()
    run = fitted(FOLA(architecture("cnn:2,3:6", fed), epochs=1), fed, 1)
    assert (run.shared["w.precision"] > 1e-5).any()
    run = fitted(FOLA(architecture("mlp:6,dropout=0.5", small), epochs=1), small, 2)
    assert all(v.isfinite().all() for v in run.shared.values())
