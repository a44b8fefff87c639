"""Features of test data, of methods whose weights have names of their own and of those with one vector."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.baselines import fitted
from support.cases import BASELINES, PRIORS
from support.federations import blobs, pictures

from hierfl.inference.evaluation.features import features
from hierfl.models import Ditto, PFedVEM
from hierfl.nn.networks.build import architecture


@pytest.mark.parametrize("cls", dict.fromkeys(cls for cls, _ in [*PRIORS, *BASELINES]), ids=lambda cls: cls.name)
def test_every_method_has_features(cls):
    fed, spec = (pictures(), "bncnn:2:5") if cls.name == "fedbn" else (blobs([9, 6, 12]), "mlp:5")
    run = fitted(cls(architecture(spec, fed)), fed, 1)
    z, y, names = features(run.fitted)
    number = sum(fed.sizes("test"))
    assert z.shape == (number, run.fitted.method.network.head.features)
    assert np.isfinite(z).all()
    assert len(y) == len(names) == number


@pytest.mark.parametrize("cls", [PFedVEM, Ditto])
def test_they_are_the_personal_models(cls):
    """Ditto asks the shared network first, and has its weights in one vector."""
    fed = blobs([9, 6, 12])
    net = architecture("mlp:5", fed)
    run = fitted(cls(net), fed, 2)
    z, _, names = features(run.fitted)
    for j in range(fed.clients):
        x, _ = fed.examples(fed.test[j][None])
        values = run.fitted.values([j])
        if cls is Ditto:
            *parts, _ = values["v"].split(net._pieces, -1)
            weights = {k: p.unflatten(-1, s) for (k, s), p in zip(net.base.shapes.items(), parts, strict=True)}
        else:
            weights = net.base.parameters_from(values)
        expected = net.base.apply(weights, x).detach()[0]
        torch.testing.assert_close(torch.from_numpy(z[names == fed.ids[j]]), expected, rtol=1e-12, atol=1e-12)
