"""The best round by validation: where it beats the last by more than chance."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from hierfl.inference.run.rounds import chosen_round, held_out_sums


def rounds(*nll: list[float], n: int = 10) -> list[tuple[int, Tensor]]:
    """Rounds 1, 2, ... of clients with n validation examples each, whose mean NLLs are given."""
    return [(t, torch.tensor([[n, n * value] for value in row]).double()) for t, row in enumerate(nll, 1)]


EVEN = [1.0, 1.2, 0.8, 1.1, 0.9]


@pytest.mark.parametrize(
    ("held_out", "wanted", "words"),
    [
        # better by 0.5 for every client: no spread of the differences
        (rounds([v - 0.5 for v in EVEN], EVEN), 1, ""),
        # better by as much in the mean, by luck of one client
        (rounds([-1.5, *EVEN[1:]], EVEN), 2, "they differ by 1.0 paired standard errors over 5 clients, and 3"),
        # equals: the later round
        (rounds(EVEN, EVEN, EVEN), 3, "prefers no earlier round: the last has the lowest NLL, 1.000"),
        (rounds([v + 0.5 for v in EVEN], EVEN), 2, "prefers no earlier round"),
        # the earlier of two is no better than the later one of them
        (rounds([v - 0.5 for v in EVEN], [v - 0.5 for v in EVEN], EVEN), 2, ""),
        (rounds([0.1] * 4, [1.0] * 4), 2, "4 clients have validation data, of 5 needed"),
        (rounds([1.0] * 5, [float("inf")] * 5), 1, ""),
        (rounds([float("nan")] * 5, EVEN), 2, "prefers no earlier round"),
        ([], 7, "does not tell rounds apart"),
    ],
)  # fmt: skip
def test_an_earlier_round_has_to_beat_the_last(held_out: list[tuple[int, Tensor]], wanted: int, words: str) -> None:
    last = held_out[-1][0] if held_out else 7
    choice = chosen_round(held_out, last)
    assert choice.round == wanted
    assert words in choice.note
    assert bool(choice.note) is (wanted == last)


def test_examples_are_pooled() -> None:
    """A client of ninety examples weighs nine times one of ten; one without any says nothing."""
    n, nll = np.array([90.0, 10.0, 0.0]), np.array([1.0, 2.0, np.nan])
    sums = held_out_sums({"n": n, "nll": nll})
    assert sums.tolist() == [[90.0, 90.0], [10.0, 20.0], [0.0, 0.0]]
    many = [(t, sums.repeat(4, 1) * torch.tensor([1.0, 1 - 0.1 * (t == 1)])) for t in (1, 2)]
    assert chosen_round(many, 2).round == 1
    # The errors are of the ratio: a client's difference is counted from its share of the pooled one.
    d, size = np.tile([9.0, 2.0], 4), np.tile([90.0, 10.0], 4)
    gap = d.sum() / size.sum()
    error = np.sqrt(8 / 7 * np.square(d - gap * size).sum()) / size.sum()
    assert gap > 3 * error
    off = [(1, many[0][1]), (2, many[1][1] - torch.tensor([0.0, 5.0]) * (torch.arange(12) == 1)[:, None])]
    assert chosen_round(off, 2).round == (1 if 0.099 > 3 * 0.02 else 2)


def test_nothing_to_compare() -> None:
    assert chosen_round(rounds(EVEN), 1).note == ""
    assert held_out_sums({"n": np.zeros(2)}).tolist() == [[0.0, 0.0], [0.0, 0.0]]
