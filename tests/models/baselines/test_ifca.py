"""IFCA: clusters of clients."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from support.baselines import WHOLE, fitted, rows_of
from support.federations import slopes

from hierfl import Federation
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.rules.clusters import ClusterMeans
from hierfl.models import (
    IFCA,
    FedAvg,
)
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture


@pytest.mark.parametrize("scope", ["head", "all"])
def test_ifca_with_one_cluster_is_fedavg(scope: str, small: Federation, net: Architecture) -> None:
    common = {"epochs": 3, "lr": 0.05, "batch": WHOLE}
    ifca = fitted(IFCA(net, clusters=1, scope=scope, **common), small, 3)
    avg = fitted(FedAvg(net, **common), small, 3)
    expected = avg.shared["w"] if scope == "head" else net.vector(avg.shared, avg.shared["w"])
    assert torch.allclose(ifca.shared["w"][0], expected, rtol=1e-9, atol=1e-11)


def test_ifca_finds_who_belongs_together() -> None:
    """Two groups with opposite slopes: every client chooses by its training data, and its group gets its own line."""
    fed = slopes([30, 25, 40, 35, 20, 15], noise=0.1, seed=3)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    y = fed.y.clone()
    for j, index in enumerate(fed.train):
        y[index] = signs[j] * (3 * fed.x[index, 0] + fed.x[index, 1])
    fed = dataclasses.replace(fed, y=y)
    run = fitted(IFCA(architecture("linear", fed, noise=1.0), lr=0.1, batch=WHOLE, init_scale=0.5), fed, 20)
    labels = run.personal["label"].flatten()
    assert len(set(labels[::2].tolist())) == len(set(labels[1::2].tolist())) == 1
    assert labels[0] != labels[1]
    lines_found = run.shared["w"][labels.long()]
    assert torch.allclose(lines_found[:, :2], signs[:, None] * torch.tensor([3.0, 1.0]), atol=0.05)


def test_a_cluster_that_nobody_chooses_stays(small: Federation, net: Architecture) -> None:
    start = InitialWeights.for_network(net, 0)
    method = IFCA(net, clusters=3)
    heads = method.shared(start)["w"]
    assert len({tuple(h.tolist()) for h in heads}) == 3  # equal ones would be chosen alike for ever
    chunk = rows_of(method, small, label=torch.tensor([0.0, 2, 0, 0, 2, 2, 0]).view(7, 1, 1).double())
    copies = torch.randn(7, 1, 3, net.head.d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rule = ClusterMeans("label")
    sent = rule.message(["w"], chunk.put({"w": copies}))
    total = {k: v.sum(0) for k, v in sent.items()}
    new = rule.update({"w": heads.double()}, total, AggregationContext(7, torch.tensor(7.0), 1, lambda names: {}))["w"]
    assert torch.equal(new[1], heads[1].double())
    own = torch.tensor([0, 2, 3, 6])
    weights = chunk.n[own] / chunk.n[own].sum()
    assert torch.allclose(new[0], (weights[:, None] * copies[own, 0, 0]).sum(0), rtol=1e-12)
