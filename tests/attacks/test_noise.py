"""What noise leaves of attacks on networks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support.attacks import membership
from support.privacy_networks import auc_bound, gaussian_auc

from hierfl import Federation, fit
from hierfl.inference.noise.accounting import gaussian_epsilon, gaussian_ratio
from hierfl.models import FedAvg
from hierfl.nn.networks.build import architecture


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0])
def test_the_bound_on_areas_is_above_that_of_gaussian_mechanisms(epsilon: float) -> None:
    """Any attack on a fit with this epsilon and delta; at epsilon 0 a coin's."""
    ratio = gaussian_ratio(epsilon, 1e-5)
    assert gaussian_epsilon(ratio, 1e-5) == pytest.approx(epsilon)
    assert 0.5 < gaussian_auc(ratio) < auc_bound(epsilon, 1e-5) < 1
    assert auc_bound(0.0, 0.0) == pytest.approx(0.5)
    # Without delta the curve has one corner, at 1 / (1 + e^epsilon).
    assert auc_bound(epsilon, 0.0) == pytest.approx(1 - 1 / (1 + math.exp(epsilon)), abs=1e-3)


@pytest.mark.parametrize("noise", [{}, {"dp": "site", "epsilon": 1e9}])
def test_the_attack_sees_the_model_that_is_published(noise: dict[str, Any]) -> None:
    """Its confidences make the fit's own NLL of rows that are no members, with noise and without."""
    x, y = membership.digits(50)
    test = np.arange(len(y)) % 3 == 0
    who = np.arange(len(y)) % 2
    data = Federation.from_arrays(x[~test], y[~test], who[~test], x_test=x[test], y_test=y[test], client_test=who[test])
    net = architecture("mlp:16", data)
    run = fit(FedAvg(net, lr=1.0, batch=1000, epochs=5), data, rounds=3, progress=False, splits=("test",), **noise)
    nll = np.log1p(np.exp(-membership.confidences(run, net, x[test], y[test]))).mean()
    assert nll == pytest.approx(run.last()["gm_nll"], rel=1e-4)


@pytest.mark.cpu(12, "twenty fits of a network, each with a hundred steps")
@pytest.mark.slow
def test_with_noise_who_was_in_a_study_shows_no_more_than_epsilon_allows() -> None:
    """The same steps without noise tell members from others."""
    x, y = membership.digits(50)
    attacks = {}
    for epsilon in (0.0, 1.0):
        noise = {"dp": "site", "epsilon": epsilon, "usual_rows": 30} if epsilon else {}
        settings = {"lr": 1.0, "batch": 1000, "epochs": 20, "momentum": 0.0}
        fitted = membership.network(
            "fedavg", x, y, 2, network="mlp:16", settings=settings, rounds=5, evaluate_every=5, **noise
        )
        attacks[epsilon] = membership.run(fitted, 10, 50)
    assert attacks[0.0].auc > 0.6
    assert attacks[1.0].auc < attacks[0.0].auc
    assert attacks[1.0].auc < gaussian_auc(gaussian_ratio(1.0, 1e-5)) + 3 * attacks[1.0].se
