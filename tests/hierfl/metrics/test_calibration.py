"""Temperatures, scores and sets of labels, against their definitions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from hierfl.metrics.calibration import (
    CELLS,
    conformal_rank,
    edges,
    from_set_sums,
    label_scores,
    score_rows,
    set_rows,
    set_sums,
    tempered,
    tempering_rows,
)
from hierfl.rng import generator


@pytest.fixture
def predicted() -> tuple[Tensor, Tensor, Tensor]:
    """Log probabilities (3, 6, 4) in double precision, labels and a mask: the last client has no examples."""
    rng = generator("said")
    log_probs = (2 * torch.randn(3, 6, 4, generator=rng, dtype=torch.float64)).log_softmax(-1)
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [False] * 6])
    return log_probs, torch.randint(4, (3, 6), generator=rng), mask


def test_terms_are_the_likelihood_and_its_derivatives(predicted: tuple[Tensor, Tensor, Tensor]) -> None:
    log_probs, y, mask = predicted

    def objective(power: Tensor) -> Tensor:
        each = -(power * log_probs).log_softmax(-1).gather(-1, y[..., None])[..., 0]
        return (each * mask).sum(1)

    power = torch.tensor(0.7, dtype=torch.float64)
    terms = tempering_rows(log_probs, y, mask, 0.7)["terms"]
    assert terms[:, 0].tolist() == [6, 4, 0]
    torch.testing.assert_close(terms[:, 1], objective(power))
    for row in range(3):
        slope = torch.func.grad(lambda p, row=row: objective(p)[row])
        torch.testing.assert_close(terms[row, 2], slope(power))
        torch.testing.assert_close(terms[row, 3], torch.func.grad(slope)(power))


def test_a_client_that_has_diverged_adds_nothing(predicted: tuple[Tensor, Tensor, Tensor]) -> None:
    log_probs, y, mask = predicted
    log_probs[0, 2] = torch.nan
    terms = tempering_rows(log_probs, y, mask, 1.0)["terms"]
    assert not terms[0].any()
    assert terms[1].all()


def test_a_probability_of_zero_is_a_number(predicted: tuple[Tensor, Tensor, Tensor]) -> None:
    log_probs, y, mask = predicted
    log_probs[..., 0] = -torch.inf
    assert tempering_rows(log_probs.log_softmax(-1), y, mask, 0.5)["terms"].isfinite().all()


def test_power_one_is_to_the_bit_and_none_is_uniform(predicted: tuple[Tensor, Tensor, Tensor]) -> None:
    log_probs = predicted[0]
    assert tempered(log_probs, 1.0) is log_probs
    torch.testing.assert_close(tempered(log_probs, 1e-12).exp(), torch.full_like(log_probs, 0.25))
    assert torch.equal(tempered(log_probs, 3.0).argmax(-1), log_probs.argmax(-1))


def test_a_score_is_the_probability_of_all_likelier_labels(predicted: tuple[Tensor, Tensor, Tensor]) -> None:
    log_probs = predicted[0]
    p = log_probs.exp()
    likelier = torch.where(p[..., None, :] > p[..., :, None], p[..., None, :], 0.0).sum(-1)
    torch.testing.assert_close(label_scores(log_probs), likelier)
    assert (label_scores(log_probs).gather(-1, p.argmax(-1, keepdim=True)) == 0).all()
    twice = torch.tensor([0.3, 0.4, 0.3], dtype=torch.float64).log()
    torch.testing.assert_close(label_scores(twice), torch.tensor([0.4, 0.0, 0.7], dtype=torch.float64))
    assert (label_scores(torch.full((2, 3), torch.nan)) == 1).all()


def test_scores_are_counted_in_cells_that_hold_their_upper_end(predicted: tuple[Tensor, Tensor, Tensor]) -> None:
    log_probs, y, mask = predicted
    histogram = score_rows(log_probs, y, mask, 0.2, 0.4)
    scores = label_scores(log_probs).gather(-1, y[..., None])[..., 0]
    for row in range(3):
        own = scores[row][mask[row]].numpy()
        at_most = np.array([(own <= end).sum() for end in edges(0.2, 0.4)])
        np.testing.assert_array_equal(histogram["counts"][row].cumsum(0)[:-1], at_most)
        assert histogram["counts"][row].sum() == len(own) == histogram["n"][row]
    assert histogram["counts"].shape == (3, CELLS + 2)


def test_sets_hold_the_likeliest_labels_up_to_the_threshold(predicted: tuple[Tensor, Tensor, Tensor]) -> None:
    """They grow with it, from the likeliest label alone to all of them."""
    log_probs, y, mask = predicted
    right = ((log_probs.argmax(-1) == y) & mask).sum(1) / mask.sum(1)
    least, most = (set_rows(log_probs, y, mask, q) for q in (0.0, 1.0))
    torch.testing.assert_close(least["set_coverage"], right.double(), equal_nan=True)
    assert least["set_size"][:2].tolist() == [1, 1]
    assert most["set_size"][:2].tolist() == [4, 4]
    assert most["set_coverage"][:2].tolist() == [1, 1]
    assert most["set_coverage"][2].isnan()


def test_what_is_said_of_sets_is_the_same_from_sums_of_parts(predicted: tuple[Tensor, Tensor, Tensor]) -> None:
    rows = {k: v.numpy() for k, v in set_rows(*predicted, 0.5).items()}
    validation = np.array([3, 0, 0])
    first, second = ({k: v[part] for k, v in rows.items()} for part in (slice(0, 1), slice(1, 3)))
    parts = [set_sums(first, validation[:1]), set_sums(second, validation[1:])]
    empty = set_sums({"n": np.zeros(0)}, np.zeros(0))
    summary = from_set_sums({k: empty[k] + parts[0][k] + parts[1][k] for k in empty})
    assert summary == pytest.approx(from_set_sums(set_sums(rows, validation)))
    cover = rows["set_coverage"]
    assert summary["set_coverage"] == pytest.approx(cover[:2].mean())
    assert summary["set_coverage_pooled"] == pytest.approx((6 * cover[0] + 4 * cover[1]) / 10)
    assert summary["set_coverage_unheard"] == pytest.approx(cover[1])
    assert summary["set_coverage_worst10"] == pytest.approx(cover[:2].min(), abs=5e-4)
    assert from_set_sums(empty) == {}


def coverage(sizes: list[int], alpha: float, draw: Callable[[np.random.Generator, int], np.ndarray]) -> float:
    """How often a new score of a client, each as often as it has calibration scores, is within the threshold.

    Args:
        sizes: calibration scores of each client.
        alpha: how often not.
        draw: (number of a client) -> scores (10,000, n + 1) of it.
    """
    rng, total = np.random.default_rng(3), sum(sizes)
    known, new = [], []
    for j, n in enumerate(sizes):
        both = draw(rng, j)[:, : n + 1]
        known.append(both[:, :n])
        new.append(both[:, n])
    threshold = np.sort(np.concatenate(known, 1), 1)[:, conformal_rank(total, alpha) - 1]
    return float(sum(n / total * (own <= threshold).mean() for n, own in zip(sizes, new, strict=True)))


#: replications, and four standard errors of a coverage over them
TIMES = 10_000
ERROR = 4 * math.sqrt(0.1 * 0.9 / TIMES)


@pytest.mark.parametrize(("n", "alpha"), [(10, 0.1), (19, 0.1), (40, 0.1), (33, 0.05)])
def test_sets_cover_and_hardly_more_where_scores_are_exchangeable(n: int, alpha: float) -> None:
    covered = coverage([n], alpha, lambda rng, j: rng.random((TIMES, n + 1)))
    assert 1 - alpha - ERROR <= covered <= 1 - alpha + (1 + alpha) / (n + 1) + ERROR


@pytest.mark.parametrize("sizes", [[4, 4, 4], [1, 1, 18], [10, 20, 3, 2]])
def test_sets_cover_where_clients_differ(sizes: list[int]) -> None:
    """Scores within a client are exchangeable, those of different clients are not: some are always larger."""
    covered = coverage(sizes, 0.1, lambda rng, j: 3.0 * j + rng.random((TIMES, 30)))
    assert 0.9 - ERROR <= covered <= 0.9 + 2 / sum(sizes) + ERROR


def test_rank_is_exact_in_decimals() -> None:
    assert [conformal_rank(n, 0.1) for n in (9, 10, 20, 100)] == [10, 10, 19, 91]
    assert conformal_rank(100, 0.29) == 72  # 29 misses; in binary 0.29 * 100 is less
