"""A mean that goes on where it went."""

from __future__ import annotations

import pytest
import torch

from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.rules.means import SampleWeighted


@pytest.mark.parametrize(("beta", "server_lr"), [(0.0, 0.5), (0.5, 1.0), (0.9, 0.3)])
def test_the_servers_momentum_is_a_heavy_ball(beta: float, server_lr: float):
    means = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    theta, expected, v = torch.ones(4).double(), torch.ones(4).double(), torch.zeros(4).double()
    kept: dict[str, torch.Tensor] = {}
    for mean in means:
        context = AggregationContext(3, torch.tensor(3.0), 0, lambda names: {}, kept, {}, 0)
        total = {"theta": 7 * mean, "weight": torch.tensor(7.0).double()}
        theta = SampleWeighted(server_lr, beta).update({"theta": theta}, total, context)["theta"]
        v = beta * v + (mean - expected)
        expected = expected + server_lr * v
        torch.testing.assert_close(theta, expected, rtol=1e-14, atol=1e-14)
    assert bool(kept) == bool(beta)  # without any nothing is remembered


def test_of_a_lasting_direction_a_round_is_ten_times_as_long():
    """Clients that go one step from wherever they are, by momentum 0.9."""
    theta, kept, last = torch.zeros(1).double(), {}, 0.0
    for _ in range(200):
        last = float(theta)
        context = AggregationContext(1, torch.tensor(1.0), 0, lambda names: {}, kept, {}, 0)
        total = {"theta": theta + 1, "weight": torch.tensor(1.0).double()}
        theta = SampleWeighted(momentum=0.9).update({"theta": theta}, total, context)["theta"]
    assert float(theta) - last == pytest.approx(10)


def test_after_its_last_round_there_is_none():
    theta, kept, values = torch.zeros(1).double(), {}, []
    for number in range(1, 6):
        context = AggregationContext(1, torch.tensor(1.0), number, lambda names: {}, kept, {}, 0)
        total = {"theta": theta + (1.0 if number <= 3 else 0.0), "weight": torch.tensor(1.0).double()}
        theta = SampleWeighted(momentum=0.5, rounds=3).update({"theta": theta}, total, context)["theta"]
        values.append(float(theta))
    assert values == pytest.approx([1.0, 2.5, 4.25, 4.25, 4.25])


def test_variances_of_batch_norm_stay_above_zero():
    old, kept = {"base.1.running_var": torch.ones(2), "base.1.weight": torch.ones(2)}, {}
    for _ in range(2):
        context = AggregationContext(1, torch.tensor(1.0), 1, lambda names: {}, kept, {}, 0)
        total = {**dict.fromkeys(old, torch.full((2,), 0.05)), "weight": torch.tensor(1.0)}
        old = SampleWeighted(momentum=0.9).update(old, total, context)
    torch.testing.assert_close(old["base.1.running_var"], torch.full((2,), 0.05))
    assert old["base.1.weight"].min() < 0  # a weight overshoots
