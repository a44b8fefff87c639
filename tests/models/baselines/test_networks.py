"""The baselines' networks, new clients and evaluation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import pytest
import torch
from support.baselines import WHOLE, fitted
from support.federations import pictures

from hierfl import Federation, UserError
from hierfl.inference import Method, fit
from hierfl.inference.method.initial import InitialWeights
from hierfl.models import (
    APFL,
    DGLMC,
    IFCA,
    L2GD,
    Ditto,
    FedAvg,
    FedAvgFT,
    FedProx,
    PerFedAvg,
    PFedBayes,
    PFedMe,
    Scaffold,
)
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture


def test_batch_norm_is_averaged_or_refused() -> None:
    fed = pictures()
    net = architecture("bncnn:2:5", fed)
    for method in (PFedMe, L2GD, PFedBayes, DGLMC, Ditto, APFL):
        with pytest.raises(UserError, match="no running statistics of batch norm"):
            method(net)
    with pytest.raises(UserError, match="no running statistics"):
        IFCA(net, scope="all")
    for method in (FedProx, Scaffold, FedAvgFT, PerFedAvg, IFCA):
        run = fitted(method(net), fed, 1)
        before = InitialWeights.for_network(net, 0).base
        moved = [k for k in net.base.names if k.endswith("running_mean")]
        assert all((run.shared[k] - before[k]).abs().max() > 1e-6 for k in moved), method.__name__
    # ... as FedAvg does it
    common = {"epochs": 1, "lr": 0.01, "batch": WHOLE, "momentum": 0.0}
    prox, avg = fitted(FedProx(net, mu=1e-12, **common), fed, 2), fitted(FedAvg(net, **common), fed, 2)
    for name in net.statistics(InitialWeights.for_network(net, 0).base):
        assert torch.allclose(prox.shared[name], avg.shared[name], rtol=1e-8), name


def test_a_prior_alone_needs_no_dropout(small: Federation) -> None:
    net = architecture("mlp:6,dropout=0.5", small)
    for method in (PFedMe(net, rounds=2), L2GD(net), PFedBayes(net, batch=4), Ditto(net), FedProx(net)):
        fitted(method, small, 2)
    with pytest.raises(UserError, match="no dropout"):
        PerFedAvg(net)


def test_a_new_client_begins_with_what_the_federation_has_learned(small: Federation, net: Architecture) -> None:
    x, y = (part.numpy() for part in small.examples(small.train[0]))
    run = fitted(PFedMe(net, lam=1.0, rounds=5, lr=0.05, w_lr=0.1), small, 10)
    population = run.predict_new_client(x)
    close = run.predict_new_client(x, given=(x, y))
    assert (population - close).abs().max() > 1e-3
    unseen = PFedMe(net).network(
        PFedMe(net).begin(InitialWeights.for_network(net, 0)).double(), small.examples(small.train[0])[0][None]
    )
    assert (close - unseen[0].softmax(-1)).abs().max() > 0.05
    clusters = fitted(IFCA(net), small, 3)
    assert clusters.fitted.newcomer()["label"] in (0, 1)


def test_who_adapts_before_every_evaluation_has_a_best_round(small: Federation, net: Architecture) -> None:
    with_validation = dataclasses.replace(small, validation=[t[:1] for t in small.train])
    run = fit(FedAvgFT(net), with_validation, rounds=3, dtype=torch.float64, progress=False)
    assert run.best()["split"] == "test"
    losses = [row["pm_nll"] - row["gm_nll"] for row in run.evaluations if row["split"] == "test"]
    assert all(abs(gap) > 1e-4 for gap in losses)


@pytest.mark.parametrize("method", [FedAvgFT, PerFedAvg, partial(IFCA, clusters=3, init_scale=2.0, lr=0.3)])
def test_an_evaluation_on_the_way_is_what_the_last_one_would_have_been(
    method: Callable[[Architecture], Method], small: Federation, net: Architecture
) -> None:
    on, last = (fit(method(net), small, rounds=r, dtype=torch.float64, progress=False).evaluations for r in (3, 1))
    assert on[0]["round"] == last[0]["round"] == 1
    assert on[0]["pm_nll"] == last[0]["pm_nll"] != on[1]["pm_nll"]
