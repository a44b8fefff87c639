"""Draws that a chain at the server leaves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.rules.kept_draws import KeptDraws, without_repeats


def after(rounds: int, burn: int, thin: int, keep: int, skipped: tuple[int, ...] = ()) -> list[float]:
    """What is kept of a value that is the round's number as the round begins."""
    rule, remembered, draws = KeptDraws("w", burn, thin), {}, torch.full((1, keep, 2), -1.0)
    for number in range(1, rounds + 1):
        kept: dict[str, Tensor] = {k: v.clone() for k, v in remembered.items()}
        context = AggregationContext(
            4, torch.tensor(4.0), number, lambda names: {}, kept, {"w": torch.full((2,), float(number))}
        )
        new = rule.update({"draws": draws}, {}, context)["draws"]
        assert new.shape == draws.shape
        assert new.dtype == draws.dtype
        if number not in skipped:
            draws, remembered = new, kept
    assert torch.equal(draws[..., 0], draws[..., 1])
    return draws[0, :, 0].tolist()


@pytest.mark.parametrize(
    ("rounds", "burn", "thin", "keep", "expected"),
    [
        (0, 2, 1, 3, [-1, -1, -1]),
        (2, 2, 1, 3, [2, 2, 2]),  # nothing but the last one, before burn-in is over
        (3, 2, 1, 3, [3, 3, 3]),
        (4, 2, 1, 3, [3, 4, 3]),  # those that there are come again
        (5, 2, 1, 3, [3, 4, 5]),
        (9, 2, 1, 3, [7, 8, 9]),  # the last ones
        (9, 2, 3, 4, [3, 6, 9, 3]),
        (11, 2, 3, 4, [3, 6, 9, 3]),
        (12, 2, 3, 2, [9, 12]),
        (5, 0, 2, 1, [5]),
    ],
)
def test_every_thin_th_draw_after_burn_in_the_last_of_them(
    rounds: int, burn: int, thin: int, keep: int, expected: list[float]
) -> None:
    assert after(rounds, burn, thin, keep) == expected


def test_rounds_that_were_skipped_are_not_counted() -> None:
    assert after(7, 2, 1, 3, skipped=(1, 4)) == [5, 6, 7]
    assert after(7, 2, 2, 3, skipped=(5,)) == [3, 6, 3]


@pytest.mark.parametrize(
    ("draws", "expected"),
    [([2, 2, 2], [2]), ([3, 4, 3], [3, 4]), ([3, 4, 5], [3, 4, 5]), ([3, 6, 9, 3, 6], [3, 6, 9]), ([7], [7])],
)
def test_without_repeats(draws: list[int], expected: list[int]) -> None:
    """Vectors or numbers."""
    for shape in ((1, len(draws)), (1, len(draws), 1)):
        assert without_repeats(torch.tensor(draws).view(shape)).flatten().tolist() == expected
