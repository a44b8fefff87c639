"""Sums of messages: what the server needs of a round, whoever has added it up."""

from __future__ import annotations

from functools import reduce
from itertools import permutations
from operator import add

import pytest
import torch

from hierfl.inference.messages.sums import Sums

CPU = torch.device("cpu")


def sums(number: int, **totals: float) -> Sums:
    """A sum of ``number`` messages; whole numbers, so that sums are exact."""
    values = {k: torch.full((2, 3), v, dtype=torch.float64) for k, v in totals.items()}
    counts = torch.tensor(number), torch.tensor(number % 2)
    return Sums(*counts, {"w": values, "base": {"base.weight": torch.full((4,), 2.0 * number)}}, 10 * number)


def same(a: Sums, b: Sums) -> bool:
    flat = [{(g, k): v for g, total in sums.totals.items() for k, v in total.items()} for sums in (a, b)]
    equal = flat[0].keys() == flat[1].keys() and all(torch.equal(v, flat[1][k]) for k, v in flat[0].items())
    return equal and (a.reported, a.diverged, a.bytes) == (b.reported, b.diverged, b.bytes)


def test_sums_add_up_in_any_order_and_any_grouping() -> None:
    parts = [sums(3, w=1.0, tau=4.0), sums(1, w=-5.0, tau=2.0), sums(4, w=8.0, tau=0.0), Sums.nothing(CPU)]
    whole = reduce(add, parts)
    assert (int(whole.reported), int(whole.diverged), whole.bytes) == (8, 2, 80)
    assert torch.equal(whole.totals["w"]["tau"], torch.full((2, 3), 6.0, dtype=torch.float64))
    assert all(same(reduce(add, order), whole) for order in permutations(parts))
    assert same((parts[0] + parts[1]) + (parts[2] + parts[3]), whole)


def test_nothing_is_the_sum_of_no_messages() -> None:
    nothing, some = Sums.nothing(CPU), sums(2, w=1.0)
    assert not nothing.totals
    assert same(nothing + some, some)
    assert same(some + nothing, some)


def test_sums_are_left_as_they_were() -> None:
    a, b = sums(2, w=1.0), sums(3, w=2.0)
    _ = a + b
    assert same(a, sums(2, w=1.0))
    assert same(b, sums(3, w=2.0))


@pytest.mark.parametrize("keys", [{"w": 1.0}, {"w": 1.0, "weight": 2.0}, {}])
def test_sums_of_messages_of_different_forms_are_refused(keys: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a sum of 'w' has"):
        sums(2, w=1.0, tau=2.0) + sums(2, **keys)
