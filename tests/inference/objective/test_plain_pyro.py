"""A method file runs in plain Pyro."""

from __future__ import annotations

import pyro
import pytest
import torch
from support.methods import noise_for, states
from torch.nn.functional import softplus

from hierfl import Federation
from hierfl.inference.objective.elbo import elbo
from hierfl.models import PFedVEM
from hierfl.nn.architecture import Architecture


def test_guides_and_models_run_in_plain_pyro(small: Federation, net: Architecture) -> None:
    """With its parameters in the store, Pyro's own ELBO can be evaluated."""
    method = PFedVEM(net)
    shared, rows = states(method, small)
    batch = small.batch(range(small.clients))
    with pyro.get_param_store().scope(), torch.random.fork_rng():
        for name, value in {**shared, **rows}.items():
            pyro.param(name, value.clone())
        torch.manual_seed(0)
        model = pyro.poutine.condition(method.model, data={"w": shared["w"]})
        loss = pyro.infer.TraceMeanField_ELBO(num_particles=200, vectorize_particles=True, max_plate_nesting=2)
        theirs = -loss.loss(model, method.guide, batch)
    ours = elbo(method, batch, {**shared, **rows}, noise_for(small, list(range(small.clients)), 4000)).sum()
    assert theirs == pytest.approx(float(ours), rel=0.02)  # both are Monte-Carlo in the likelihood
    assert softplus(rows["pi"]).min() > 0
