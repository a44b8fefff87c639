"""FedEP: draws of its posterior."""

from __future__ import annotations

import torch
from support.baselines import fitted

from hierfl import Federation
from hierfl.arviz_data import group_names
from hierfl.models import FedEP
from hierfl.nn.architecture import Architecture

COMMON = {"lr": 0.05, "batch": 4}


def test_draws_are_of_the_posterior(small: Federation, net: Architecture) -> None:
    """No wider than sigma, the same for all clients; predictions are averaged over them, or at the mean alone."""
    method = FedEP(net, least=3.0, scale=1.0, precision="laplace", sigma=0.2, **COMMON)
    run = fitted(method, small, 3)
    mean, precision = run.shared["w"], run.shared["precision"] + 25.0
    assert (precision > 26).any()
    drawn = method.shared_draws(run.shared, 20_000)["w"].flatten(0, 2)
    z = (drawn - mean) * precision.sqrt()
    assert (z.mean(0).abs() < 5 / 20_000**0.5).all()
    assert (z.std(0) - 1).abs().max() < 5 / 40_000**0.5
    effects = run.posterior(draws=7)["posterior"]["effects"]
    few = method.shared_draws(run.shared, 7)["w"].flatten(0, 2)
    torch.testing.assert_close(torch.as_tensor(effects.values[0]), few, rtol=0, atol=0)
    assert effects.effect.values[-1] == f"w[{net.d - 1}]"
    assert run.posterior(draws=7).log_likelihood.attrs["draws_of"] == "shared"
    x = small.examples(small.test[1])[0]
    each = torch.stack([net(w, x[None])[0].softmax(-1) for w in few]).mean(0)
    torch.testing.assert_close(run.predict(x, small.ids[1], draws=7).double(), each, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(run.predict_new_client(x, draws=0).double(), net(mean, x[None])[0].softmax(-1))
    alone = fitted(FedEP(net, sigma=0.0, **COMMON), small, 1)
    assert "posterior" not in group_names(alone.posterior(draws=2))
