"""Invariant 2, plate independence: what a client computes does not depend on who is beside it."""

from __future__ import annotations

import pytest
import torch
from support.cases import FEW_STEPS, METHODS
from support.federations import blobs
from support.methods import TUTORIAL, largest_first, network_for, states
from support.representatives import over_methods

from hierfl import Federation, UserError
from hierfl.inference import SVI, fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.method.initial import InitialWeights
from hierfl.models import (
    PFedVEM,
)
from hierfl.nn.architecture import Architecture
from hierfl.rng import ClientNoise, client_keys


@pytest.mark.cpu(8, "two fits of two rounds, one of them client by client; PFedHB has four parts")
@over_methods(METHODS)
def test_personal_state_does_not_depend_on_chunk_or_order(case: tuple) -> None:
    """Chunks of 1, and of 3 and 1 in another order of clients, after two rounds of minibatches: same to 1e-5."""
    fed = blobs([9, 2, 14, 5])
    method = case[0](network_for(case[0], fed), **case[1], **FEW_STEPS.get(case[0], {}))
    shuffled = fed.select([3, 0, 2, 1])
    variants = [(fed, 1), (shuffled, 3)]
    how: dict = {"rounds": 2, "evaluate_every": 2, "participation": 0.6, "dtype": torch.float64, "progress": False}
    runs = [fit(method, who, chunk=chunk, **how) for who, chunk in variants]
    first = runs[0]
    for run, (who, _) in zip(runs[1:], variants[1:], strict=True):
        back = [list(who.ids).index(name) for name in fed.ids]
        for name, value in {**first.personal, **first.fitted.copies}.items():
            other = {**run.personal, **run.fitted.copies}[name][back]
            assert torch.allclose(value, other, rtol=1e-5, atol=1e-5), name
        for name, value in first.shared.items():
            assert torch.allclose(value, run.shared[name], rtol=1e-5, atol=1e-5), name


def test_a_client_computes_the_same_alone_as_among_others(small: Federation, net: Architecture) -> None:
    step = SVI(["mu", "pi", "base"], 4, sgd(0.002, 0.9), 3, particles=3)
    method = PFedVEM(net)
    shared, rows = states(method, small)
    order = largest_first(small)
    together = step.run(ClientChunk(method, small, order, 1, 0, shared, {k: v[order] for k, v in rows.items()}), 0)
    for position, j in enumerate(order):
        alone = step.run(ClientChunk(method, small, [j], 1, 0, shared, {k: v[[j]] for k, v in rows.items()}), 0)
        for name in ("mu", "pi", *net.base.names):
            assert torch.allclose(together.values[name][position], alone.values[name][0], rtol=1e-9, atol=1e-9)


def test_noise_of_a_client_is_its_own_and_standard_normal() -> None:
    noise = ClientNoise(client_keys("ab"), (0,), 5, dtype=torch.float64)
    steps = torch.stack([noise.at(s).normal("w", None, torch.Size([700])) for s in range(40)])
    alone = ClientNoise(client_keys("b"), (0,), 5, dtype=torch.float64)
    again = torch.stack([alone.at(s).normal("w", None, torch.Size([700])) for s in range(40)])
    assert torch.equal(steps[:, :, 1:], again)
    assert len(steps.flatten().unique()) == steps.numel()  # no draw is used twice
    n = steps.numel()
    assert abs(steps.mean()) < 4 / n**0.5
    assert abs(steps.var() - 1) < 4 * (2 / n) ** 0.5


def test_a_shape_that_would_mix_clients_is_refused(small: Federation, net: Architecture) -> None:
    """A scalar beside a vector, declared without its dimension, would broadcast clients against data."""

    class Careless(TUTORIAL):
        def shared(self, start: InitialWeights) -> dict:
            return {**super().shared(start), "log_rho": torch.tensor(-2.0)}

    with pytest.raises(UserError, match=r"site 'w_j' has batch shape \(7, 7\).*a scalar beside a vector"):
        fit(Careless(net), small, rounds=1, progress=False)
