"""MLflow: a run of an experiment, in the store that MLflow itself is set to (``MLFLOW_TRACKING_URI``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hierfl.errors import UserError

from .base import Logged, TrackedRun
from .kept import read_kept, write_kept

#: the experiment where ``MLFLOW_EXPERIMENT_NAME`` names no other one
EXPERIMENT = "hierfl"
#: MLflow's own limits: letters of a parameter's value, parameters in one request
LONGEST_VALUE, MOST_PARAMETERS = 500, 100


class MlflowTracker:
    """Parameters, metrics ``SPLIT/METRIC`` at the round's number, figures as artifacts."""

    def __init__(self, run: TrackedRun) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nothing is sent but to the store
        import mlflow
        from mlflow.entities import Param

        self.client = mlflow.MlflowClient()
        where = mlflow.get_tracking_uri()
        kept = read_kept(run.folder, "mlflow") if run.resumed else None
        if kept is not None and kept["where"] != where:
            raise UserError(f"the run is in another MLflow store, {kept['where']}: say so by MLFLOW_TRACKING_URI")
        if kept is not None:
            self.id = kept["id"]
            self.client.set_terminated(self.id, "RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment = self.client.get_experiment_by_name(name)
        key = self.client.create_experiment(name) if experiment is None else experiment.experiment_id
        self.id = self.client.create_run(key, run_name=run.name).info.run_id
        write_kept(run.folder, "mlflow", {"id": self.id, "where": where})
        parameters = [Param(k, str(v)[:LONGEST_VALUE]) for k, v in run.parameters.items()]
        for first in range(0, len(parameters), MOST_PARAMETERS):
            self.client.log_batch(self.id, params=parameters[first : first + MOST_PARAMETERS])

    def logged(self) -> set[Logged]:
        names = self.client.get_run(self.id).data.metrics
        return {
            (metric.step, name.partition("/")[0])
            for name in names
            for metric in self.client.get_metric_history(self.id, name)
        }

    def metrics(self, number: int, split: str, values: Mapping[str, float]) -> None:
        import time

        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(f"{split}/{name}", value, now, number) for name, value in values.items()]
        self.client.log_batch(self.id, metrics=metrics)

    def figure(self, number: int, path: Path) -> None:
        self.client.log_artifact(self.id, str(path), "figures")

    def close(self, finished: bool) -> None:
        self.client.set_terminated(self.id, "FINISHED" if finished else "KILLED")
