"""What the text of a withdrawal says of a rule is what the rule does with a message of a site that has left."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hierfl.experiments.federate.papers.memory import FADES, REMADE, STAYS, UNLESS
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.rules.means import PrecisionWeightedMean, SampleWeighted, UniformMean
from hierfl.inference.server.rules.means_of import SampleWeightedMeanOf
from hierfl.inference.server.rules.response_sd import PooledResponseSd
from hierfl.inference.server.rules.running import CountSum, DeltaSum, EstimatedTotal, RunningMean

#: sums over those who stay
TOTAL = {"v": torch.tensor([6.0, 0.0]), "weight": torch.tensor(3.0), "tau": torch.tensor(3.0)}
FULL = {**TOTAL, "v": torch.tensor([6.0, 9.0])}


def left_of(rule: Any, total: dict[str, torch.Tensor], rounds: int = 40) -> torch.Tensor:
    """By how much values differ, (2,), where a site had moved them by one before it left, so many rounds ago."""
    values, shared = [], torch.tensor([2.0, 2.0])
    for moved in (0.0, 1.0):
        value = {"v": torch.tensor([1.0, 1.0]) + moved}
        rule_state = {"seen": torch.tensor(1.0)} if isinstance(rule, RunningMean) else {}
        for number in range(2, 2 + rounds):
            context = AggregationContext(
                4, torch.tensor(3.0), number, lambda names: {}, rule_state, {"w": shared, **value}
            )
            value = rule.update(value, total, context)
        values.append(value["v"])
    return (values[1] - values[0]).abs()


@pytest.mark.parametrize(
    "rule",
    [
        SampleWeighted(), SampleWeighted(server_lr=0.5), SampleWeighted(momentum=0.5), UniformMean(),
        PrecisionWeightedMean("mu", "rho", server_lr=0.5), SampleWeightedMeanOf(lambda chunk: chunk.n),
        PooledResponseSd(), EstimatedTotal(lambda chunk: chunk.n),
    ],
    ids=lambda rule: type(rule).__name__,
)  # fmt: skip
def test_what_is_made_anew_fades(rule: Any) -> None:
    assert FADES[type(rule).__name__] == REMADE
    assert float(left_of(rule, FULL).max()) < 1e-4


def test_a_number_that_no_other_site_has_stays() -> None:
    assert FADES["CountSum"] == UNLESS
    assert left_of(CountSum(lambda chunk: chunk.n), TOTAL).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(("rule", "least"), [(DeltaSum(lambda chunk: chunk.n), 1.0), (RunningMean("w"), 0.01)])
def test_what_adds_up_stays(rule: Any, least: float) -> None:
    assert type(rule).__name__ in STAYS
    assert float(left_of(rule, FULL).min()) > least - 1e-6
