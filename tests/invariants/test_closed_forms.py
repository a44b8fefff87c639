"""Invariant 3, closed forms: each is a stationary point of its block of the ELBO."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from support.methods import noise_for, states
from torch.nn.functional import softplus

from hierfl import Federation
from hierfl.inference import Method, PrecisionWeightedMean, fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.rho import closed_form_rho
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.objective.elbo import elbo
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.models import (
    PFedVEM,
)
from hierfl.nn.architecture import Architecture


def block_gradient(method: Method, fed: Federation, values: dict, block: str, who: list[int]) -> torch.Tensor:
    """Gradient of the ELBO of some clients in one block of values, everything else held; exact, all but the data term.

    The data term does not depend on w or rho given the guide, so one draw of it will do.
    """
    leaf = values[block].clone().requires_grad_()
    with torch.enable_grad():
        total = elbo(
            method,
            fed.batch(range(fed.clients)),
            {**values, block: leaf},
            noise_for(fed, list(range(fed.clients))),
        )
        return torch.autograd.grad(total[who].sum(), leaf)[0]


@pytest.mark.parametrize("who", [[0, 2, 5], [0, 1, 2, 3, 4, 5, 6]])
def test_confidence_weighted_mean_is_stationary_in_w(who: list[int], small: Federation, net: Architecture) -> None:
    method, rule = PFedVEM(net), PrecisionWeightedMean("mu", "rho")
    shared, rows = states(method, small)
    chunk = ClientChunk(method, small, who, 1, 0, shared, {k: v[who] for k, v in rows.items()})
    sums = {k: v.sum(0) for k, v in rule.message(["w"], chunk).items()}
    context = AggregationContext(small.clients, torch.tensor(float(len(who))), 1, lambda n: {})
    w = rule.update({"w": shared["w"]}, sums, context)["w"]
    before = block_gradient(method, small, {**shared, **rows}, "w", who)
    after = block_gradient(method, small, {**shared, **rows, "w": w}, "w", who)
    assert after.abs().max() < 1e-6 < before.abs().max()


def test_a_server_learning_rate_is_a_step_towards_the_maximiser(small: Federation, net: Architecture) -> None:
    everyone = list(range(small.clients))
    for server_lr in (1.0, 0.7):
        method = PFedVEM(net, server_lr=server_lr)
        shared, rows = states(method, small)
        chunk = ClientChunk(method, small, everyone, 1, 0, shared, rows).own(method.expand("base", shared))
        chunk = chunk.put({k: v + 0.1 for k, v in chunk.values.items() if k.startswith("base.")})
        context = AggregationContext(small.clients, torch.tensor(7.0), 1, lambda n: {})
        for group, rule in method.exchange().items():
            names = method.expand(group, shared)
            old = {k: shared[k] for k in names}
            sums = {k: v.sum(0) for k, v in rule.message(names, chunk).items()}
            new = rule.update(old, sums, context)
            full = dataclasses.replace(rule, server_lr=1.0).update(old, sums, context)
            for k in names:
                assert not torch.allclose(full[k], old[k])
                assert torch.allclose(new[k], old[k] + server_lr * (full[k] - old[k]))


def test_closed_form_rho_is_stationary_in_rho(small: Federation, net: Architecture) -> None:
    method = PFedVEM(net)
    shared, rows = states(method, small)
    rho = closed_form_rho(rows["mu"], softplus(rows["pi"]), shared["w"], rows["rho"])
    everyone = list(range(small.clients))
    before = block_gradient(method, small, {**shared, **rows}, "rho", everyone)
    after = block_gradient(method, small, {**shared, **rows, "rho": rho}, "rho", everyone)
    assert after.abs().max() < 1e-6 < before.abs().max()
    d = net.head.d
    trace, gap = softplus(rows["pi"]).square().sum(-1), (rows["mu"] - shared["w"]).square().sum(-1)
    assert torch.allclose(rho.flatten().pow(-2), (d / (trace + gap)).flatten())  # Eq. 8 as printed


@pytest.mark.parametrize(("terms", "expected"), [("uncertainty", 0.04), ("deviation", 0.25), ("both", 0.29)])
def test_ablations_of_tau_keep_their_term(terms: str, expected: float) -> None:
    mean, scale = torch.full((2, 1, 3), 1.5), torch.full((2, 1, 3), 0.2)
    rho = closed_form_rho(mean, scale, torch.ones(3), torch.ones(2, 1, 1), terms=terms)
    assert torch.allclose(rho.square(), torch.full((2, 1, 1), expected))


@pytest.mark.parametrize("terms", ["both", "uncertainty", "deviation"])
def test_every_definition_of_tau_trains(terms: str, small: Federation, net: Architecture) -> None:
    """The deviation alone is zero in the first round, where mu_j = w: rho stays at sigma_0 until it says something."""
    run = fit(PFedVEM(net, tau=terms), small, rounds=3, dtype=torch.float64, progress=False)
    last = run.last()
    assert (last["diverged"], last["rejected"], last["skipped"]) == (0, 0, 0)
    start = 0.1 * InitialWeights.for_network(net, 0).head.double()
    assert all(not torch.equal(mu, start) for mu in run.personal["mu"])
    rho = run.personal["rho"]
    assert (rho >= 0.01).all()  # tau is at most 1 / head_lr
    if terms == "deviation":
        assert not torch.allclose(rho, torch.tensor(0.1, dtype=torch.float64))


def test_rho_has_a_floor() -> None:
    zeros = torch.zeros(1, 1, 3)
    rho = closed_form_rho(zeros + 1e-9, zeros, zeros, torch.ones(1, 1, 1))
    assert rho.item() == pytest.approx(1e-3)
