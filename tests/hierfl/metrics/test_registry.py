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


def test_the_metric_of_a_column() -> None:
    assert metrics.metric_of_column("pm_draws_ece") is metrics.METRICS["ece"]
    assert metrics.metric_of_column("worst10_accuracy") is metrics.METRICS["worst10_accuracy"]
    assert metrics.metric_of_column("ood_auroc") is metrics.metric_of_column("pm_seconds") is None
    columns = ("gm_accuracy", "pm_coverage90", "pm_draws_accuracy_pooled", "accuracy_cv", "pm_nll", "participation")
    assert [metrics.in_percent(column) for column in columns] == [True, True, True, False, False, False]
