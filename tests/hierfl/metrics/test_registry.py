"""Metrics are listed once: what a run's files hold, and what each is of."""

from __future__ import annotations

from hierfl.metrics import registry as metrics


def test_metrics_are_those_of_the_files() -> None:
    assert metrics.names_of("classification") == (
        "accuracy", "nll", "brier", "ece", "worst10_accuracy", "accuracy_cv", "accuracy_pooled", "ece_pooled",
    )  # fmt: skip
    assert metrics.names_of("regression") == ("rmse", "nll", "crps", "coverage90", "rmse_pooled")
    assert metrics.global_metrics() == ("accuracy", "nll", "brier", "ece", "rmse", "crps", "coverage90")
    assert metrics.client_metrics("regression") == ("rmse", "nll", "crps", "coverage90")
    assert [metrics.main_metric(task).name for task in ("classification", "regression")] == ["accuracy", "rmse"]
