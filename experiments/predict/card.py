"""What a run's model is, for those who ask it: no row of its data, and no client's name or numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hierfl.inference.run.result import Run
from hierfl.models.any_model.fitted_model import FittedModel
from hierfl.models.mixed_effects.fitted_model import FittedMixedModel

from ..cli.as_json import plain
from ..run_folder.summary import SUMMARY_METRICS, fit_warnings, read_summary


def model_card(folder: Path, loaded: Run | FittedMixedModel | FittedModel) -> dict[str, Any]:
    """Method, data, what it takes and answers, its metrics over all clients, and what a reader has to know of the fit.

    Args:
        folder: of the run.
        loaded: what it holds.
    """
    summary = read_summary(folder)
    run = loaded if isinstance(loaded, Run) else loaded.run
    federation = run.fitted.federation
    facts = federation.about
    takes: dict[str, Any] = {"columns": facts.get("columns"), "client": facts.get("client")}
    if isinstance(loaded, FittedMixedModel):
        takes = {"formula": loaded.formula, "client": facts["reader"].places.levels.client}
    elif takes["columns"] is None:
        takes = {"shape": list(federation.event_shape), "type": str(federation.x.dtype).removeprefix("torch.")}
    card = {
        "name": folder.name, "method": summary["method"], "data": summary.get("data"), "clients": summary["clients"],
        "rounds": summary["rounds"], "seed": summary["seed"], "takes": takes,
        "labels": list(facts.get("labels") or range(federation.classes)) if isinstance(loaded, Run) else None,
        "response": facts.get("response"),
        "metrics": {name: summary[name] for name in SUMMARY_METRICS if summary.get(name) is not None},
        "warnings": fit_warnings(summary), "advice": summary.get("advice") or [], "versions": summary["versions"],
    }  # fmt: skip
    return {name: value for name, value in plain(card).items() if value not in (None, [], {})}
