"""Steps that change over the rounds, and weights that are averaged over them: options of FedAvg and what is like it."""

from __future__ import annotations

import pytest
import torch
from support.baselines import fitted
from support.federations import blobs

from hierfl import Federation
from hierfl.models import FedAvg, PFedHB, PFedVEM
from hierfl.nn.networks.build import architecture

COMMON = {"epochs": 1, "lr": 0.1, "batch": 8}


@pytest.fixture(scope="module")
def fed() -> Federation:
    return blobs([20, 9, 4])


def test_steps_that_decay_to_nothing_leave_the_first_rounds_weights(fed: Federation) -> None:
    net = architecture("linear", fed)
    first, later = (fitted(FedAvg(net, **COMMON, lr_decay=1e-9), fed, rounds).shared["w"] for rounds in (1, 3))
    assert torch.equal(first, fitted(FedAvg(net, **COMMON), fed, 1).shared["w"])
    torch.testing.assert_close(later, first, rtol=0, atol=1e-7)
    base = {"base_epochs": 1, "base_lr": 0.1, "base_batch": 8, "lr_decay": 1e-9}
    deep = architecture("mlp:3", fed)
    runs = [fitted(PFedVEM(deep, **base), fed, rounds).shared for rounds in (1, 2)]
    for name in (k for k in runs[0] if k.startswith("base")):
        torch.testing.assert_close(runs[1][name], runs[0][name], rtol=0, atol=1e-7)


def test_the_server_goes_on_where_it_went(fed: Federation) -> None:
    """Clients move in the first round alone: then w_t = w_0 + (1 + beta + ... + beta^(t - 1)) (w_1 - w_0)."""
    net = architecture("linear", fed)
    settings = {**COMMON, "lr_decay": 1e-9, "server_momentum": 0.5}
    first, third = (fitted(FedAvg(net, **settings), fed, rounds).shared["w"] for rounds in (1, 3))
    begun = fitted(FedAvg(net, **COMMON | {"epochs": 0}), fed, 1).shared["w"]
    torch.testing.assert_close(third, begun + 1.75 * (first - begun), rtol=0, atol=1e-6)


def test_averaged_weights_predict(fed: Federation) -> None:
    net = architecture("linear", fed)
    plain, averaged, hb = (
        fitted(method, fed, 6)
        for method in (FedAvg(net, **COMMON), FedAvg(net, **COMMON, average=3), PFedHB(net, **COMMON, average=3))
    )
    assert not torch.equal(plain.shared["w"], averaged.shared["w"])
    assert torch.equal(hb.shared["w"], averaged.shared["w"])
    assert averaged.evaluations[-1]["gm_nll"] != plain.evaluations[-1]["gm_nll"]
    assert averaged.evaluations[-1]["gm_nll"] == hb.evaluations[-1]["gm_nll"]
