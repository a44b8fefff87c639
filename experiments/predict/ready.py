"""A finished run that is ready for predictions."""

from __future__ import annotations

from pathlib import Path

from hierfl.inference.run.result import Run
from hierfl.models.any_model.fitted_model import FittedModel
from hierfl.models.mixed_effects.fitted_model import FittedMixedModel

from ..config import RunConfig
from ..run_folder.config_file import read_config
from ..run_folder.load import load_run, predicts_alone


def ready(folder: Path, *, trust_code: bool) -> tuple[Run | FittedMixedModel | FittedModel, RunConfig]:
    """What a run's folder holds, with the rows that were fitted where its method predicts given these.

    Args:
        folder: of the run.
        trust_code: as of :func:`hierfl.load_run`.

    Raises:
        UserError: as :func:`hierfl.load_run`.
    """
    loaded = load_run(folder, trust_code=trust_code)
    if not predicts_alone(loaded):
        loaded = load_run(folder, rows=True, trust_code=trust_code)
    return loaded, read_config(folder).run
