"""Every metric once: what it is called, of which task it is, which way is better, and how clients' become one number.

Nothing here imports torch. A new metric is an entry here, and its arithmetic in the file of its task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Task = Literal["classification", "regression"]
#: how the clients' numbers become one; see :mod:`hierfl.metrics.pooling`
Pooling = Literal["mean", "worst tenth", "variation", "by size", "root mean square by size", "of all bins"]

#: on fewer test examples a client's ECE, or coverage, says more of their number than of the model
MIN_TEST_EXAMPLES = 20
#: what begins a metric's column in metrics.csv and summary.json, and whose predictions it is of
KINDS = {"pm": "personal, at the posterior mean", "pm_draws": "personal, averaged over draws", "gm": "global"}


@dataclass(frozen=True)
class Metric:
    """A metric.

    Attributes:
        name: in files.
        label: on axes and in tables.
        task: whose it is; None for both.
        better: which way; "nominal" where it should be :attr:`nominal`.
        nominal: that number.
        pooled: how the clients' become one number.
        of: the metric of a client that it is made from; its own name where a client has it itself.
        of_global: whether the global model's has a column.
        percent: whether the screen shows it in percent.
        points: whether a difference of two is shown in percentage points.
        needs_many: whether it says little on fewer than :data:`MIN_TEST_EXAMPLES` test examples.
        main: whether the task is judged by it.
        gain: what a gain of it is called; the label where none is given.
    """

    name: str
    label: str
    task: Task | None
    better: Literal["higher", "lower", "nominal"]
    pooled: Pooling = "mean"
    of: str = ""
    nominal: float | None = None
    of_global: bool = True
    percent: bool = False
    points: bool = False
    needs_many: bool = False
    main: bool = False
    gain: str = ""

    @property
    def per_client(self) -> bool:
        """Whether a client has one of its own."""
        return not self.of

    @property
    def gain_label(self) -> str:
        """The label of the axis that shows a gain."""
        return self.gain or self.label


_ALL = (
    Metric("accuracy", "accuracy", "classification", "higher", percent=True, points=True, main=True,
           gain="accuracy, pp"),
    Metric("rmse", "RMSE", "regression", "lower", main=True),
    Metric("nll", "NLL", None, "lower"),
    Metric("brier", "Brier", "classification", "lower"),
    Metric("ece", "ECE", "classification", "lower", points=True, needs_many=True, gain="ECE, pp"),
    Metric("crps", "CRPS", "regression", "lower"),
    Metric("coverage90", "90 % cover", "regression", "nominal", nominal=0.9, percent=True, points=True,
           needs_many=True, gain="to 90 % cover, pp"),
    Metric("worst10_accuracy", "accuracy of the worst tenth", "classification", "higher", "worst tenth", "accuracy",
           of_global=False, percent=True, points=True),
    Metric("accuracy_cv", "coefficient of variation of accuracy", "classification", "lower", "variation", "accuracy",
           of_global=False),
    Metric("accuracy_pooled", "accuracy, pooled", "classification", "higher", "by size", "accuracy", of_global=False,
           percent=True, points=True),
    Metric("ece_pooled", "ECE, pooled", "classification", "lower", "of all bins", "bins", of_global=False,
           points=True),
    Metric("rmse_pooled", "RMSE, pooled", "regression", "lower", "root mean square by size", "rmse", of_global=False),
)  # fmt: skip
#: every metric by its name
METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}


def metrics_of(task: str) -> tuple[Metric, ...]:
    """Those of a task, in the order of the columns of metrics.csv."""
    return tuple(metric for metric in METRICS.values() if metric.task in (None, task))


def names_of(task: str) -> tuple[str, ...]:
    """The names of the metrics."""
    return tuple(metric.name for metric in metrics_of(task))


def client_metrics(task: str | None = None) -> tuple[str, ...]:
    """Names of what every client has of its own: of a task, or of both, classification's first."""
    tasks = ("classification", "regression") if task is None else (task,)
    return tuple(dict.fromkeys(m.name for task_name in tasks for m in metrics_of(task_name) if m.per_client))


def global_metrics(task: str | None = None) -> tuple[str, ...]:
    """Names of what the global model has: of a task, or of both."""
    return tuple(name for name in client_metrics(task) if METRICS[name].of_global)


def main_metric(task: str) -> Metric:
    """What the task is judged by: accuracy, or RMSE."""
    return next(metric for metric in metrics_of(task) if metric.main)


def metric_of_column(column: str) -> Metric | None:
    """The metric of a column such as ``pm_draws_nll``, ``gm_accuracy`` or ``ece``; None for other columns."""
    for kind in sorted(KINDS, key=len, reverse=True):
        if column.startswith(f"{kind}_"):
            return METRICS.get(column.removeprefix(f"{kind}_"))
    return METRICS.get(column)


def in_percent(column: str) -> bool:
    """Whether a column is of a metric that the screen shows in percent."""
    metric = metric_of_column(column)
    return metric is not None and metric.percent
