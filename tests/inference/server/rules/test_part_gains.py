"""Parts of a model enter by what they gain on held rows, one a phase."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.rules.part_gains import PartGains, student, sum_error

CLIENTS = 20


def judged(rounds: list[Tensor], until: int, reporting: float = 1.0) -> list[dict[str, Tensor]]:
    """The shared values after each round in which clients' gains were these, (J, K)."""
    rule = PartGains("parts", ("a", "b"), until, 3, lambda chunk: (torch.zeros(0),) * 3)
    state, kept, states = rule.shared(), {}, []
    for number, d in enumerate(rounds, 1):
        t = (d / 2).tanh()
        total = {"gain": d.sum(0), "square": d.square().sum(0), "favour": t.sum(0), "favour_square": t.square().sum(0)}
        total |= {"nulls": torch.tensor([0.0, 2.0, 1.0]).double()}
        total |= {"rows": torch.tensor([5.0 * len(d)]).double(), "judged": torch.tensor([float(len(d))]).double()}
        context = AggregationContext(
            CLIENTS, torch.tensor(float(len(d))).double(), number, lambda names: {}, kept, state
        )
        state = rule.update(state, total, context)
        states.append(state)
    return states


def gains(a: float, b: float, seed: int = 0) -> Tensor:
    """Means a and b over twenty clients, standard deviation one."""
    e = torch.randn((CLIENTS, 2), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    e = (e - e.mean(0)) / e.std(0)
    return e + torch.tensor([a, b])


def test_the_larger_gain_enters_first_and_the_other_beside_it():
    both = judged([gains(1.0, 2.0)] * 2 + [gains(0.0, 0.0) + torch.tensor([1.0, 0.0])] * 2, 4)
    assert [float(s["parts.a"]) for s in both] == [0, 0, 1, 1]
    assert [float(s["parts.b"]) for s in both] == [0, 1, 1, 1]
    torch.testing.assert_close(both[-1]["parts.gain"], torch.tensor([20.0, 40.0]).double())  # as it was when it entered
    torch.testing.assert_close(both[0]["parts.error"], torch.full((2,), CLIENTS**0.5).double())
    assert float(both[0]["parts.rows"]) == 100
    assert float(both[0]["parts.null"]) == 1


def test_nothing_enters_after_the_last_round():
    late = judged([gains(0.0, 0.0)] * 4 + [gains(5.0, 5.0)] * 2, 4)
    assert not any(float(s[f"parts.{part}"]) for s in late for part in "ab")
    assert torch.equal(late[3]["parts.gain"], late[5]["parts.gain"])


def test_a_gain_needs_twenty_to_one_and_more_than_one_client():
    few = gains(0.1, 0.0) / 100 + torch.tensor([0.14, 0.16])  # 2.8 and 3.2 nats in all, to within a hundredth
    state = judged([few] * 2, 2)[0]
    assert [float(state["parts.a"]), float(state["parts.b"])] == [0, 1]
    assert 20 * 0.141 < math.log(20) < 20 * 0.16
    single = torch.zeros((CLIENTS, 2), dtype=torch.float64)
    single[0] = 100.0
    assert not float(judged([single] * 2, 2)[-1]["parts.a"])


def test_clients_who_differ_in_size_do_not_hide_what_all_of_them_say():
    """A mean of 4 nats with a standard deviation of 13, but all are above zero."""
    d = torch.full((CLIENTS, 2), 1.0, dtype=torch.float64)
    d[0] = 60.0
    error = sum_error(d.sum(0), d.square().sum(0), torch.tensor(20))[0]
    assert d[:, 0].sum() < float(student(torch.tensor(19.0))) * error
    assert float(judged([d] * 2, 2)[-1]["parts.a"])


def test_where_a_tenth_reports_what_is_known_follows():
    states = judged([gains(1.0, 0.0)] + [gains(0.0, 0.0)[:2]] * 2, 9)
    expected = 20.0
    for _ in range(2):
        expected = 0.9 * expected + 0.1 * float(gains(0.0, 0.0)[:2, 0].sum()) * 10
    torch.testing.assert_close(float(states[-1]["parts.gain"][0]), expected)


@pytest.mark.parametrize("degrees", [4, 9, 19, 99])
def test_quantiles_and_errors_are_the_usual_ones(degrees: int):
    quantile = float(student(torch.tensor(float(degrees)).double()))
    assert quantile == pytest.approx(stats.t.ppf(0.95, degrees), rel=2e-3)
    d = gains(0.3, 0.0)[: degrees + 1, 0]
    n = len(d)
    error = sum_error(d.sum(), d.square().sum(), torch.tensor(float(n)))
    torch.testing.assert_close(error, n**0.5 * d.std())
