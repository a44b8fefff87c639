"""Means of functions of what clients have."""

from __future__ import annotations

import pytest
import torch
from support.federations import blobs
from support.methods import chunk_of

from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.rules.means import SampleWeighted
from hierfl.inference.server.rules.means_of import SampleWeightedMeanOf
from hierfl.models import FedAvg
from hierfl.nn.networks.build import architecture


@pytest.mark.parametrize("server_lr", [1.0, 0.3])
def test_of_the_copies_themselves_it_is_the_sample_weighted_mean(server_lr: float) -> None:
    """And of anything else, the mean of that, by numbers of examples."""
    fed = blobs([9, 4, 6])
    chunk = chunk_of(FedAvg(architecture("linear", fed)), fed).own(["w"])
    noise = torch.randn(chunk.values["w"].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    chunk = chunk.put({"w": chunk.values["w"] + noise})
    old = {"w": chunk.shared["w"]}
    context = AggregationContext(3, torch.tensor(3.0), 1, dict)

    def received(rule: SampleWeighted | SampleWeightedMeanOf) -> torch.Tensor:
        message = rule.message(["w"], chunk)
        assert {k: (tuple(v.shape[1:]), v.dtype) for k, v in message.items()} == {
            k: (field.shape, field.dtype) for k, field in rule.form(old).items()
        }
        return rule.update(old, {k: v.sum(0) for k, v in message.items()}, context)["w"]

    same = SampleWeightedMeanOf(lambda rows: rows.values["w"].squeeze(1), server_lr)
    torch.testing.assert_close(received(same), received(SampleWeighted(server_lr)), rtol=1e-14, atol=1e-14)
    squares = SampleWeightedMeanOf(lambda rows: rows.values["w"].squeeze(1).square(), server_lr)
    rows = dict(zip(chunk.clients, chunk.values["w"][:, 0], strict=True))
    mean = (9 * rows[0] ** 2 + 4 * rows[1] ** 2 + 6 * rows[2] ** 2) / 19
    expected = (1 - server_lr) * old["w"] + server_lr * mean
    torch.testing.assert_close(received(squares), expected, rtol=1e-13, atol=1e-14)
