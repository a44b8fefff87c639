"""Draws and gradients of a phase."""

from __future__ import annotations

import pytest
import torch
from support.methods import states

from hierfl import Federation
from hierfl.inference import SVI
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.clients.gradients import elbo_gradient
from hierfl.inference.local.optimizers import sgd
from hierfl.models import FedPer, PFedVEM
from hierfl.nn.architecture import Architecture


def test_every_step_of_a_phase_has_fresh_draws(
    small: Federation, net: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hierfl.inference.objective.elbo as objective

    seen: list[torch.Tensor] = []
    original = objective.model_sites

    def spy(*arguments: object) -> dict:
        seen.append(arguments[3]["w_j"].value.detach().clone())  # type: ignore[index]
        return original(*arguments)

    monkeypatch.setattr(objective, "model_sites", spy)
    method = PFedVEM(net)
    shared, rows = states(method, small)
    chunk = ClientChunk(method, small, [0], 1, 0, shared, {k: v[[0]] for k, v in rows.items()})
    SVI(["base"], 2, sgd(1e-3), 5, particles=3, per="example").run(chunk, 2)  # the head stands still
    assert len(seen) == 10
    values = torch.stack(seen)
    assert len(values.unique()) == values.numel()
    assert values.shape[1] == 3


def test_generic_gradients_are_taken_at_what_was_broadcast(small: Federation, net: Architecture) -> None:
    method = FedPer(net)
    shared, rows = states(method, small)
    chunk = ClientChunk(method, small, [0, 1], 1, 0, shared, {k: v[:2] for k, v in rows.items()})
    names = list(net.base.names)
    trained = SVI(["base"], 5, sgd(0.5)).run(chunk, 0)
    before, after = (elbo_gradient(state, names, 1, "g") for state in (chunk, trained))
    assert not torch.allclose(trained.values[names[0]].squeeze(1), shared[names[0]])
    assert all(torch.equal(before[k], after[k]) for k in names)
