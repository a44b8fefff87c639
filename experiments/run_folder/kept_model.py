"""A run's model in its folder: what predictions need, and no row of the data.

It is in ``model/``: the state of all clients, how inputs are read, and how the network is made. How the method is made
says the folder's config.toml.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierfl.inference.method.capabilities import is_tabular, reads_columns
from hierfl.inference.run import kept
from hierfl.models.mixed_effects.after import rowless
from hierfl.nn.networks import written

if TYPE_CHECKING:
    from torch import Tensor

    from hierfl.inference import Run

#: of a run's folder
MODEL = "model"


def write_model(folder: Path, run: Run) -> None:
    """Keeps a run's model in its folder."""
    record: dict[str, Any] = {"network": None, "design": None}
    tensors: dict[str, Tensor] = {}
    method: Any = run.fitted.method
    if not is_tabular(method):
        record["network"], tensors = written.written(method.given_network)
    elif not reads_columns(type(method)):
        record["design"], tensors = rowless.record_of(run), rowless.effects_of(run)
    kept.write(folder / MODEL, run, record, tensors)
