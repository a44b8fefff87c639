"""Metrics against independent referees: scikit-learn, scipy, quadrature."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.metrics import log_loss, roc_auc_score
from torch.distributions import Normal

from hierfl.metrics.classification import BINS, calibration_error, classification_rows
from hierfl.metrics.ood import ood_auroc, predictive_entropy
from hierfl.metrics.pooling import (
    HISTOGRAM,
    client_sums,
    example_sums,
    from_client_sums,
    from_example_sums,
    over_clients,
)
from hierfl.metrics.registry import client_metrics, global_metrics, names_of
from hierfl.metrics.regression import regression_rows
from hierfl.rng import generator


def predictions() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = generator("predictions")
    log_probs = (2 * torch.randn((4, 50, 3), generator=rng, dtype=torch.float64)).log_softmax(-1)
    y = torch.randint(3, (4, 50), generator=rng)
    mask = torch.arange(50) < torch.tensor([50, 30, 1, 0])[:, None]
    return log_probs, y, mask


def test_classification_rows_agree_with_scikit_learn_and_ignore_padding() -> None:
    log_probs, y, mask = predictions()
    rows = classification_rows(log_probs, y, mask)
    assert rows["n"].tolist() == [50, 30, 1, 0]
    for j, n in enumerate([50, 30]):
        p, labels = log_probs[j, :n].exp().numpy(), y[j, :n].numpy()
        assert math.isclose(rows["nll"][j], log_loss(labels, p, labels=[0, 1, 2]), rel_tol=1e-9)
        assert math.isclose(rows["accuracy"][j], (p.argmax(1) == labels).mean())
        assert math.isclose(rows["brier"][j], ((p - np.eye(3)[labels]) ** 2).sum(1).mean(), rel_tol=1e-9)
        confidence, right = p.max(1), p.argmax(1) == labels
        which = np.minimum((confidence * BINS).astype(int), BINS - 1)
        error = sum(
            (which == b).mean() * abs(right[which == b].mean() - confidence[which == b].mean()) for b in set(which)
        )
        assert math.isclose(rows["ece"][j], error, rel_tol=1e-9)
    assert all(rows[name][3].isnan() for name in ("accuracy", "nll", "brier", "ece"))


def test_a_calibrated_forecaster_has_a_small_error_and_a_boaster_a_large_one() -> None:
    rng = generator("forecaster")
    p = torch.rand((1, 200_000), generator=rng, dtype=torch.float64) / 2 + 0.5
    y = (torch.rand(p.shape, generator=rng, dtype=torch.float64) > p).long()
    honest = classification_rows(torch.stack([p, 1 - p], -1).log(), y, None)
    boast = 0.5 + 0.5 * p
    loud = classification_rows(torch.stack([boast, 1 - boast], -1).log(), y, None)
    assert honest["ece"] < 0.01
    assert abs(loud["ece"] - (boast - p).mean()) < 0.01


def test_over_clients_is_unweighted_and_pooled_weights_by_size() -> None:
    log_probs, y, mask = predictions()
    rows = {k: v.numpy() for k, v in classification_rows(log_probs, y, mask).items()}
    numbers = over_clients(rows, "classification")
    accuracy = rows["accuracy"][:3]
    assert math.isclose(numbers["accuracy"], accuracy.mean())
    assert math.isclose(numbers["accuracy_pooled"], (accuracy * [50, 30, 1]).sum() / 81)
    assert math.isclose(numbers["worst10_accuracy"], accuracy.min())
    assert math.isclose(numbers["accuracy_cv"], accuracy.std() / accuracy.mean())
    assert math.isclose(numbers["ece_pooled"], calibration_error(torch.as_tensor(rows["bins"].sum(0))))
    assert over_clients({"n": np.zeros(3)}, "classification") == {}


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_metrics_are_sums_over_clients(task: str) -> None:
    """Wherever the clients are, also some of which none has data; the worst tenth to half a bin."""
    rng = np.random.default_rng(0)
    n = rng.integers(0, 30, 40).astype(float)
    n[:5] = 0
    rows = {"n": n, **{name: np.where(n > 0, rng.random(40), np.nan) for name in client_metrics(task)}}
    if task == "classification":
        rows["bins"] = rng.random((40, 15, 3))
    whole = over_clients(rows, task)
    parts = [client_sums({k: v[some] for k, v in rows.items()}, task) for some in (slice(5), slice(5, 9), slice(9, 40))]
    parts.append(client_sums({"n": np.zeros(3)}, task))
    total = {k: sum(part[k] for part in parts) for k in parts[0]}
    combined = from_client_sums(total, task)
    assert combined.keys() == whole.keys() == set(names_of(task))
    for name, value in combined.items():
        near = 0.5 / HISTOGRAM + 1e-12 if name == "worst10_accuracy" else 1e-12
        assert value == pytest.approx(whole[name], rel=1e-12, abs=near), name
    assert from_client_sums(parts[0], task) == {}


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_metrics_of_examples_are_sums(task: str) -> None:
    """Of examples in parts: those of all of them as one client's."""
    rng = generator("parts")
    y = torch.randint(3, (1, 30), generator=rng) if task == "classification" else torch.randn((1, 30), generator=rng)
    logits = torch.randn((1, 30, 3), generator=rng, dtype=torch.float64).log_softmax(-1)
    std = logits[..., 1].exp()

    def rows(part: slice) -> dict[str, np.ndarray]:
        if task == "classification":
            metrics = classification_rows(logits[:, part], y[:, part], None)
        else:
            mean, s, at = logits[None, :, part, 0], std[None, :, part], y[:, part].double()
            metrics = regression_rows(mean, s, Normal(mean, s).log_prob(at), at, None)
        return {k: v.numpy() for k, v in metrics.items()}

    parts = [example_sums([rows(slice(12)), rows(slice(12, 17))], task), example_sums([rows(slice(17, 30))], task)]
    parts.append(example_sums([], task))
    combined = from_example_sums({k: sum(part[k] for part in parts) for k in parts[0]}, task)
    whole = rows(slice(30))
    assert combined.keys() == set(global_metrics(task))
    for name, value in combined.items():
        assert value == pytest.approx(float(whole[name][0]), rel=1e-12), name
    assert from_example_sums(parts[2], task) == {}


def test_regression_rows_agree_with_scipy_and_quadrature() -> None:
    rng = generator("regression")
    mean = torch.randn((3, 2, 5), generator=rng, dtype=torch.float64)
    std = torch.rand((3, 2, 5), generator=rng, dtype=torch.float64) + 0.3
    y = torch.randn((2, 5), generator=rng, dtype=torch.float64)
    mask = torch.arange(5) < torch.tensor([5, 2])[:, None]
    rows = regression_rows(mean, std, Normal(mean, std).log_prob(y), y, mask)
    for j, n in enumerate([5, 2]):
        nll, crps, inside = [], [], []
        for i in range(n):
            m, s, at = mean[:, j, i].numpy(), std[:, j, i].numpy(), float(y[j, i])
            nll.append(-np.log(norm.pdf(at, m, s).mean()))
            left = quad(lambda t, m, s: norm.cdf(t, m, s).mean() ** 2, -12, at, args=(m, s))[0]
            right = quad(lambda t, m, s: (1 - norm.cdf(t, m, s).mean()) ** 2, at, 12, args=(m, s))[0]
            crps.append(left + right)
            inside.append(0.05 <= norm.cdf(at, m, s).mean() <= 0.95)
        assert math.isclose(rows["nll"][j], np.mean(nll), rel_tol=1e-9)
        assert math.isclose(rows["crps"][j], np.mean(crps), rel_tol=1e-6)
        assert math.isclose(rows["coverage90"][j], np.mean(inside))
        gap = (y[j, :n] - mean[:, j, :n].mean(0)).square().mean().sqrt()
        assert math.isclose(rows["rmse"][j], gap, rel_tol=1e-12)
    whole = over_clients({k: v.numpy() for k, v in rows.items()}, "regression")
    assert math.isclose(whole["rmse"], rows["rmse"].mean())
    gaps = (y - mean.mean(0))[mask]
    assert math.isclose(whole["rmse_pooled"], gaps.square().mean().sqrt(), rel_tol=1e-12)


def test_what_is_computed_is_what_is_registered() -> None:
    by_task = {
        "classification": classification_rows(*predictions()),
        "regression": regression_rows(torch.zeros(1, 2, 3), None, torch.zeros(1, 2, 3), torch.zeros(2, 3), None),
    }
    for task, rows in by_task.items():
        assert rows.keys() - {"n", "bins"} == set(client_metrics(task))


def test_entropy_of_uniform_and_certain_predictions() -> None:
    p = torch.tensor([[0.25] * 4, [1.0, 0.0, 0.0, 0.0]])
    assert torch.allclose(predictive_entropy(p.log()), torch.tensor([math.log(4), 0.0]))


def test_auroc_is_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(size=40), rng.normal(1, 1, size=30)
    wins = (outside[:, None] > inside).mean()
    assert ood_auroc(inside, outside) == pytest.approx(wins)
    assert wins == pytest.approx(roc_auc_score([0] * 40 + [1] * 30, [*inside, *outside]))
