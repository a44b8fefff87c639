"""Invariant 9, global state: no run leaks into another (the fixture checks the rest)."""

from __future__ import annotations

import torch

from hierfl import Federation
from hierfl.inference import fit
from hierfl.models import (
    PFedVEM,
)
from hierfl.nn.architecture import Architecture


def test_a_run_is_a_function_of_its_arguments(small: Federation, net: Architecture) -> None:
    import pyro

    first = fit(PFedVEM(net), small, rounds=2, progress=False)
    state = torch.get_rng_state()
    torch.manual_seed(99)
    pyro.param("mu", torch.zeros(3))
    again = fit(PFedVEM(net), small, rounds=2, progress=False)
    pyro.clear_param_store()
    torch.set_rng_state(state)
    for name, value in {**first.shared, **first.personal}.items():
        assert torch.equal(value, {**again.shared, **again.personal}[name])
    other = fit(PFedVEM(net), small, rounds=2, seed=1, progress=False)
    assert not torch.equal(first.shared["w"], other.shared["w"])
