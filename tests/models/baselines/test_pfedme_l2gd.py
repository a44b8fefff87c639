"""pFedMe and L2GD."""

from __future__ import annotations

import pytest
import torch
from support.baselines import WHOLE, Quadratics, fitted, linear, rows_of, slope_at
from support.methods import order_of
from torch import Tensor

from hierfl import Federation
from hierfl.inference import SVI
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.models import (
    L2GD,
    PFedMe,
)
from hierfl.nn.architecture import Architecture


def stationary(fed: Federation, strength: float) -> tuple[Tensor, Tensor]:
    """Where sum_j [f_j(x_j) + (strength / 2) |x_j - w|^2] is least, f_j mean losses: w (d,) and x_j (J, d)."""
    quadratics = Quadratics(fed)
    d = len(quadratics.b[0])
    eye = torch.eye(d, dtype=torch.float64)
    H = [A / n for A, n in zip(quadratics.A, quadratics.n, strict=True)]
    shrink = [strength * torch.linalg.inv(h + strength * eye) for h in H]
    pull = [s @ b / n / strength for s, b, n in zip(shrink, quadratics.b, quadratics.n, strict=True)]
    w = torch.linalg.solve(sum(eye - s for s in shrink), sum(pull))
    return w, quadratics.around(w, strength * quadratics.n)


def test_pfedme_and_l2gd_reach_the_same_stationary_point(lines: Federation) -> None:
    """A plain mean goes with one rho^2 = 1 / lambda and likelihoods raised to 1 / n_j."""
    lam = 1.5
    w, own = stationary(lines, lam)
    net = linear(lines)
    # exact inner solves: the copy takes one step of half the way to theta_j
    me = PFedMe(net, lam=lam, rounds=1, steps=60, lr=0.15, w_lr=0.9 / lam, batch=WHOLE)
    run = fitted(me, lines, 30)
    assert torch.allclose(run.shared["w"], w, rtol=1e-7, atol=1e-8)
    assert torch.allclose(run.personal["theta"], own, rtol=1e-6, atol=1e-7)
    # L2GD's expected operator does not move it: each turn's length times its probability is lr (1 - p)
    l2 = L2GD(net, lam=lam, p=0.3, lr=0.05, batch=WHOLE)
    chunk = rows_of(l2, lines, w=w)
    rows = {"mu": own[chunk.clients].unsqueeze(1)}
    expected, mean = torch.zeros_like(own), dict.fromkeys(("prior", "data"), 0.0)
    for step, terms, share in zip(l2.local(), ("prior", "data"), (0.3, 0.7), strict=True):
        assert step.terms == terms
        once = SVI(["mu"], 1, step.optimizer, per="example", terms=terms).run(chunk.put(rows), 0)
        moved = share * (once.values["mu"] - rows["mu"]).squeeze(1)
        assert moved.abs().max() > 1e-3
        expected = expected + moved
        mean[terms] = moved.mean(0).abs().max()
    assert expected.abs().max() < 1e-10
    assert mean["prior"] < 1e-10  # turns towards the mean leave the mean


@pytest.mark.slow
def test_l2gds_random_turns_hover_around_it_the_nearer_the_shorter_they_are(lines: Federation) -> None:
    lam, far = 1.5, []
    _, own = stationary(lines, lam)
    for lr in (0.08, 0.02):
        run = fitted(L2GD(linear(lines), lam=lam, p=0.3, lr=lr, batch=WHOLE), lines, int(10 / lr))
        far.append(float((run.personal["mu"] - own).square().mean().sqrt()))
    assert far[1] < far[0] < 0.5
    assert far[1] < 0.15


def test_pfedmes_turns_are_the_papers(small: Federation, net: Architecture) -> None:
    """K steps on theta with a minibatch, then w_j <- w_j - eta lambda (w_j - theta); plain mean, server_lr."""
    s = {"rounds": 3, "steps": 4, "lr": 0.07, "w_lr": 0.03, "lam": 5.0, "batch": 5}
    method, phase = PFedMe(net, server_lr=0.5, **s), 1
    chunk = rows_of(method, small)
    done = chunk
    for number, step in enumerate(method.local()):
        done = step.run(done, number)
    copies = []
    for row, j in enumerate(chunk.clients):
        x, y = small.examples(small.train[j])
        theta = w = chunk.shared["w"]
        epochs = [order_of(chunk, row, phase, e).split(5) for e in range(3)]
        for batch in [b for epoch in epochs for b in epoch][:3]:
            for _ in range(4):
                slope = slope_at(net, theta, x, y, batch)
                theta = theta - 0.07 * (slope + 5.0 * (theta - w))
            w = w - 0.03 * 5.0 * (w - theta)
        assert torch.allclose(done.values["theta"][row, 0], theta, rtol=1e-9, atol=1e-11)
        assert torch.allclose(done.values["w"][row, 0], w, rtol=1e-9, atol=1e-11)
        copies.append(w)
    run = fitted(method, small, 1)
    assert torch.allclose(run.shared["w"], 0.5 * chunk.shared["w"] + 0.5 * torch.stack(copies).mean(0), rtol=1e-9)


def test_l2gds_turns_come_in_runs_that_all_clients_share(small: Federation, net: Architecture) -> None:
    method = L2GD(net, p=0.3)
    towards, along = method.local()
    lengths = {step: [] for step in ("towards", "along")}
    for number in range(1, 4001):
        chunk = ClientChunk(method, small, [0], number, 0, {}, {}, examples=object())  # type: ignore[arg-type]
        lengths["towards"].append(towards.steps(chunk))
        lengths["along"].append(along.steps(chunk))
    for name, stop in (("towards", 0.7), ("along", 0.3)):
        values = torch.tensor(lengths[name], dtype=torch.float64)
        assert values.min() == 1
        error = (values.std() / 4000**0.5).item()
        assert abs(values.mean().item() - 1 / stop) < 4 * error
