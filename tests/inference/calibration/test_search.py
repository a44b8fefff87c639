"""A temperature and a threshold from rounds of sums, against answers from all predictions together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from hierfl.inference.calibration.question import Question
from hierfl.inference.calibration.search import PRIOR, AskSums, find_powers, find_threshold
from hierfl.metrics.calibration import conformal_rank, label_scores, score_rows, tempering_rows
from hierfl.metrics.pooling import MetricSums
from hierfl.rng import generator

#: a client's log probabilities (n, C) and labels (n,)
Client = tuple[Tensor, Tensor]


def clients(sizes: Sequence[int], sharpness: float = 1.0, classes: int = 5, spread: float = 2.0) -> list[Client]:
    """Labels are drawn from the softmax of what is then made sharper."""
    rng = generator("labels")
    simulated = []
    for n in sizes:
        logits = spread * torch.randn(n, classes, generator=rng, dtype=torch.float64)
        y = torch.multinomial(logits.softmax(-1), 1, generator=rng)[:, 0] if n else torch.zeros(0, dtype=torch.long)
        simulated.append(((sharpness * logits).log_softmax(-1), y))
    return simulated


def asks(*kinds: Sequence[Client]) -> tuple[AskSums, list[Question]]:
    """Clients that are asked one by one; what they were asked."""
    asked: list[Question] = []

    def ask(question: Question) -> Mapping[str, MetricSums]:
        asked.append(question)
        if question.about == "temperature":
            return {
                str(kind): {
                    "terms": sum(
                        tempering_rows(p[None], y[None], None, power)["terms"][0].numpy() for p, y in kinds[kind]
                    )
                }
                for kind, power in enumerate(question.powers)
            }
        each = [score_rows(p[None], y[None], None, question.low, question.high)["counts"][0] for p, y in kinds[0]]
        return {"scores": {"counts": torch.stack(each).sum(0).numpy()}}

    return ask, asked


def optimum(those: Sequence[Client]) -> float:
    """log T of all predictions together, by scipy."""
    log_probs, y = (torch.cat(parts) for parts in zip(*those, strict=True))

    def objective(log_power: float) -> float:
        power = float(np.exp(log_power))
        chosen = (power * log_probs).log_softmax(-1)[torch.arange(len(y)), y]
        return float(-chosen.sum()) + PRIOR * (power - 1 - log_power)

    result = minimize_scalar(objective, bounds=(-12, 12), method="bounded", options={"xatol": 1e-10, "maxiter": 500})
    return -float(result.x)


@pytest.mark.parametrize("sharpness", [0.05, 0.5, 1.0, 3.0, 40.0])
def test_temperature_is_that_of_all_predictions_together(sharpness: float) -> None:
    those = clients([30, 7, 0, 101], sharpness)
    ask, asked = asks(those)
    (power,), n = find_powers(ask, (0,))
    # Scipy compares values of the objective, which are flat to about the root of their rounding.
    assert -np.log(power) == pytest.approx(optimum(those), abs=1e-6)
    assert n == 138
    assert len(asked) <= 15
    again, _ = find_powers(asks(those[::-1])[0], (0,))
    assert again[0] == pytest.approx(power, rel=1e-12)


def test_each_kind_of_prediction_has_its_own() -> None:
    first, second = clients([40, 20], 2.0), clients([40, 20], 0.3)
    both, n = find_powers(asks(first, second)[0], (0, 20))
    alone = [find_powers(asks(those)[0], (0,))[0][0] for those in (first, second)]
    assert both == pytest.approx(tuple(alone), rel=1e-12)
    assert n == 60


@pytest.mark.parametrize("sharpness", [1.0, 2.5])
def test_honest_probabilities_stay_and_others_are_undone(sharpness: float) -> None:
    """T estimates the factor by which logits are too sharp; four standard errors, from the curvature."""
    those = clients([20_000, 20_000], sharpness)
    ask, _ = asks(those)
    (power,), _ = find_powers(ask, (0,))
    curvature = float(ask(Question("temperature", (0,), (power,)))["0"]["terms"][3])
    assert 1 / power == pytest.approx(sharpness, abs=4 * sharpness**2 / np.sqrt(curvature))
    assert sharpness**2 / np.sqrt(curvature) < 0.05


@pytest.mark.parametrize("right", [True, False])
def test_temperature_is_finite_where_all_labels_are_the_likeliest_or_the_least_likely(right: bool) -> None:
    """The likelihood alone has its maximum at T = 0, or at an infinite T."""
    (log_probs, _), *_ = clients([12])
    y = log_probs.argmax(-1) if right else log_probs.argmin(-1)
    (power,), _ = find_powers(asks([(log_probs, y)])[0], (0,))
    assert np.log(power) == pytest.approx(-optimum([(log_probs, y)]), abs=1e-6)
    assert (power > 1) == right


def test_no_data_no_change() -> None:
    assert find_powers(asks(clients([0, 0]))[0], (0,)) == ((1.0,), 0)


@pytest.mark.parametrize("order", [list, lambda those: those[::-1]])
def test_threshold_is_the_order_statistic_rounded_up(order: Callable[[list[Client]], list[Client]]) -> None:
    those = clients([40, 3, 0, 120], spread=1.0)
    scores = np.sort(np.concatenate([label_scores(p)[torch.arange(len(y)), y].numpy() for p, y in those]))
    for alpha in (0.05, 0.1, 0.3, 0.8):
        exact = scores[conformal_rank(len(scores), alpha) - 1]
        threshold, n = find_threshold(asks(order(those))[0], 0, alpha)
        assert n == 163
        assert exact <= threshold <= exact + 1e-6
        # What the guarantee needs: as many scores at or below it as the rank says.
        assert (scores <= threshold).sum() >= conformal_rank(len(scores), alpha)


def test_too_few_examples_rule_nothing_out() -> None:
    ask, _ = asks(clients([9]))
    assert find_threshold(ask, 0, 0.1) == (1.0, 9)
    assert find_threshold(asks(clients([0]))[0], 0, 0.1) == (1.0, 0)
