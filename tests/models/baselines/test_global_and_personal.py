"""Ditto and APFL: a global model and a personal one beside it."""

from __future__ import annotations

import math

import pytest
import torch
from support.baselines import fitted, rows_of, slope_at
from support.methods import order_of

from hierfl import Federation
from hierfl.models import (
    APFL,
    Ditto,
    FedAvg,
)
from hierfl.nn.architecture import Architecture


@pytest.mark.parametrize(
    "method",
    [lambda net, c: Ditto(net, lam=0.1, **c), lambda net, c: Ditto(net, lam=20.0, **c),
     lambda net, c: APFL(net, alpha_lr=0.0, **c)],
    ids=["weak", "strong", "apfl"],
)  # fmt: skip
def test_behind_a_cut_w_is_fedavgs(method: object, small: Federation, net: Architecture) -> None:
    common = {"epochs": 2, "lr": 0.05, "batch": 4}
    run, avg = fitted(method(net, common), small, 3), fitted(FedAvg(net, **common), small, 3)  # type: ignore[operator]
    assert torch.allclose(run.shared["w"], net.vector(avg.shared, avg.shared["w"]), rtol=1e-8, atol=1e-10)


def test_dittos_own_steps_are_around_what_was_received(small: Federation, net: Architecture) -> None:
    method = Ditto(net, lam=0.8, epochs=2, lr=0.05, batch=4, momentum=0.0)
    chunk = rows_of(method, small)
    offset = 0.1 * torch.randn(chunk.values["v"].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    chunk = chunk.put({"v": chunk.values["v"] + offset})
    trained = method.local()[0].run(chunk, 0).values["v"]
    for row, j in enumerate(chunk.clients):
        x, y = small.examples(small.train[j])
        v, w = chunk.values["v"][row, 0], chunk.shared["w"]
        for epoch in range(2):
            for batch in order_of(chunk, row, 0, epoch).split(4):
                slope = slope_at(net, v, x, y, batch)
                v = v - 0.05 * (slope + 0.8 * (v - w))
        assert torch.allclose(trained[row, 0], v, rtol=1e-9, atol=1e-11)


def test_apfls_steps_are_the_papers(small: Federation, net: Architecture) -> None:
    """v <- v - eta alpha grad f(alpha v + (1 - alpha) w_j), with the client's own w_j as it moves."""
    method = APFL(net, alpha=0.3, alpha_lr=0.2, epochs=2, lr=0.05, batch=4, momentum=0.0)
    chunk = rows_of(method, small)
    offset = 0.1 * torch.randn(chunk.values["v"].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    chunk = chunk.put({"v": chunk.values["v"] + offset})
    done = chunk
    for number, step in enumerate(method.local()):
        done = step.run(done, number)
    for row, j in enumerate(chunk.clients):
        x, y = small.examples(small.train[j])

        v, w, alpha = chunk.values["v"][row, 0], chunk.shared["w"], 0.3
        everything = torch.arange(len(y))
        along = ((v - w) * slope_at(net, alpha * v + (1 - alpha) * w, x, y, everything)).sum()
        alpha = float((alpha - 0.2 * along).clamp(0, 1))
        assert math.isclose(float(done.values["alpha"][row]), alpha, rel_tol=1e-9)
        for epoch in range(2):
            for batch in order_of(chunk, row, 2, epoch).split(4):
                slope = slope_at(net, w, x, y, batch)
                own = slope_at(net, alpha * v + (1 - alpha) * w, x, y, batch)
                v, w = v - 0.05 * alpha * own, w - 0.05 * slope
        assert torch.allclose(done.values["v"][row, 0], v, rtol=1e-9, atol=1e-11)


def test_apfls_weight_stays_between_none_and_all_of_it(small: Federation, net: Architecture) -> None:
    run = fitted(APFL(net, alpha_lr=1000.0), small, 3)
    assert ((run.personal["alpha"] >= 0) & (run.personal["alpha"] <= 1)).all()
    assert run.personal["alpha"].std() > 0
