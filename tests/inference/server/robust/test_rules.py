"""Robust rules of points, and weights that no client can have too much of."""

from __future__ import annotations

import pytest
import torch

from hierfl.errors import UserError
from hierfl.inference.options import Options
from hierfl.inference.server.robust.parse import parse_rule
from hierfl.inference.server.robust.rules import CentredClip, Krum, Median, RobustRule, Trimmed
from hierfl.inference.server.robust.weights import capped, middle

RULES: dict[str, RobustRule] = {
    "trimmed:0.2": Trimmed(0.2), "median": Median(), "centred-clip:1.5": CentredClip(1.5), "krum:2": Krum(2),
}  # fmt: skip
every = pytest.mark.parametrize("spec", RULES)


@every
def test_rules_have_names(spec: str) -> None:
    assert parse_rule(spec) == RULES[spec] == parse_rule(Options(robust=spec).robust)


@pytest.mark.parametrize(
    "spec", ["trimmed", "trimmed:0.5", "trimmed:nan", "median:1", "krum:0", "krum:1.5", "centred-clip:inf", "mean", ""]
)
def test_what_is_no_rule_is_refused(spec: str) -> None:
    with pytest.raises(UserError, match="robust is none, trimmed:SHARE"):
        Options(robust=spec)


def test_values_by_hand() -> None:
    points, ones = torch.tensor([[1.0], [2.0], [3.0], [4.0], [1000.0]]), torch.ones(5, 1)
    assert Trimmed(0.2).centre(points, ones).tolist() == [3.0]
    assert Trimmed(0.1).centre(points, ones).tolist() == [3.0]  # 0.5 of a client is one
    assert Median().centre(points, ones).tolist() == [3.0]
    assert Median().centre(points[:4], ones[:4]).tolist() == [2.5]
    # weights of the median say who is there alone
    assert Median().centre(points[:4], torch.tensor([[1.0], [5.0], [0.0], [1.0]])).tolist() == [2.0]
    assert Krum(1).centre(points, ones).tolist() == [2.5]
    assert Krum(1).shares(points, torch.ones(5, dtype=torch.bool)).tolist() == [1, 1, 1, 1, 0]
    # median distances from 3 are 1: beyond a radius of 2 the last one pulls by 2 alone
    first = CentredClip(2.0).centre(points, ones)
    assert 2.5 < float(first) < 4.0


def test_coordinates_of_which_a_client_says_nothing() -> None:
    points = torch.tensor([[1.0, 5.0], [2.0, 0.0], [3.0, 7.0], [50.0, 0.0]])
    weights = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0], [1.0, 0.0]])
    for rule in (Trimmed(0.25), Median()):
        assert rule.centre(points, weights).tolist() == [2.5, 6.0]
        assert rule.centre(points, torch.zeros(4, 2)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("clients", [3, 4, 5, 7, 8, 10, 12, 20])
def test_as_many_liars_as_a_rule_says_are_not_the_middle(clients: int) -> None:
    """Whatever their values and weights: what they leave lies between the others' ends."""
    points = torch.randn(clients, 3, generator=torch.Generator().manual_seed(clients))
    for rule in (Median(), Trimmed(0.3)):
        liars = rule.most(clients)
        lying, weights = points.clone(), torch.full((clients, 3), 20.0)
        lying[:liars], weights[:liars] = 1e6, 1e9
        centre = rule.centre(lying, capped(weights))
        assert ((centre >= points[liars:].amin(0)) & (centre <= points[liars:].amax(0))).all()


@every
def test_no_number_of_a_sum_is_far_from_the_others(spec: str) -> None:
    """Bounded by the others' numbers, honest ones and zeros of who is not there stay."""
    rule, points = RULES[spec], torch.randn(11, 200, generator=torch.Generator().manual_seed(0))
    present = torch.ones(11, dtype=torch.bool)
    present[10] = False
    points[10] = 0
    bounded = rule.bounded(points, present)
    assert torch.equal(bounded[10], points[10])
    assert float((bounded == points).float().mean()) > 0.6
    points[0, 0] = 1e6
    assert rule.bounded(points, present)[0, 0] < 5 * points[1:10, 0].abs().max()


def test_weights_are_capped_by_the_median() -> None:
    weights = torch.tensor([1.0, 2.0, 3.0, 1e9, 0.0])
    assert float(middle(weights, weights > 0)) == 2.5
    assert capped(weights).tolist() == [1.0, 2.0, 3.0, 7.5, 0.0]


@every
@pytest.mark.parametrize("size", [-10.0, 1e5, 1e15])
def test_a_liar_moves_the_middle_by_less_than_the_others_spread(spec: str, size: float) -> None:
    rule = RULES[spec]
    points = torch.randn(10, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ones = torch.ones_like(points)
    honest = points[1:].mean(0)
    lie = points.clone()
    lie[0] *= size
    error = (points.std(0) / 10**0.5).square().mean().sqrt()
    gap = (rule.centre(lie, ones) - honest).square().mean().sqrt()
    assert gap < 1.5 * error
    share = rule.shares(lie, torch.ones(10, dtype=torch.bool))
    assert float(share[0] * lie[0].norm()) < 2 * float(lie[1:].norm(dim=1).max())


@pytest.mark.parametrize("spec", ["trimmed:0.2", "median"])
def test_a_lie_moves_no_further_than_an_honest_client_at_the_end_of_the_others(spec: str) -> None:
    """To the bit, coordinate by coordinate, with weights too."""
    points, weights = torch.randn(10, 7, generator=torch.Generator().manual_seed(0)), torch.arange(1.0, 11)[:, None]
    for sign, end in ((1e9, points[1:].amax(0)), (-1e9, points[1:].amin(0))):
        lying, honest = points.clone(), points.clone()
        lying[0], honest[0] = sign, end
        centres = [RULES[spec].centre(p, weights.expand(10, 7)) for p in (lying, honest)]
        assert torch.equal(*centres)


@pytest.mark.parametrize(("spec", "most"), [("centred-clip:1.5", 1.0), ("krum:2", 0.5)])
def test_a_lie_moves_the_middle_by_a_part_of_a_typical_distance(spec: str, most: float) -> None:
    """Of ten clients, whatever its size and direction; beside the middle of the nine others."""
    points, ones = torch.randn(10, 7, generator=torch.Generator().manual_seed(0)), torch.ones(10, 7)
    rule = RULES[spec]
    others = rule.centre(points[1:], ones[1:])
    typical = torch.linalg.vector_norm(points[1:] - others, dim=1).median()
    for size in (10.0, 1e3, 1e9):
        for direction in torch.eye(7):
            lying = torch.cat([size * direction[None], points[1:]])
            assert torch.linalg.vector_norm(rule.centre(lying, ones) - others) < most * typical
