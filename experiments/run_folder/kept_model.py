"""A run's model in its folder: what predictions need, and no row of the data.

It is in ``model/``: the state of all clients, how inputs are read, and how the network is made. How the method is made
says the folder's config.toml. Beside it is a copy of the weights that the network began with.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierfl.files import replacing
from hierfl.inference.method.capabilities import is_tabular, reads_columns
from hierfl.inference.run import kept
from hierfl.models.mixed_effects.after import rowless
from hierfl.nn.networks import written

from ..config import Configuration, options
from .config_file import read_config

if TYPE_CHECKING:
    from torch import Tensor

    from hierfl.inference import Run

#: of a run's folder
MODEL = "model"


def write_model(folder: Path, run: Run) -> None:
    """Keeps a run's model in its folder."""
    config = read_config(folder)
    record: dict[str, Any] = {"network": None, "design": None, "settings": dict(config.settings),
                              "configured": configured(config)}  # fmt: skip
    tensors: dict[str, Tensor] = {}
    method: Any = run.fitted.method
    if not is_tabular(method):
        record["network"], tensors = written.written(method.given_network)
    elif not reads_columns(type(method)):
        record["design"], tensors = rowless.record_of(run), rowless.effects_of(run)
    kept.write(folder / MODEL, run, record, tensors)


def configured(config: Configuration) -> dict[str, Any]:
    """What config.toml says of how a run was fitted, as json has it; without what may change when a run goes on."""
    names = [k for k, option in options().items() if option.identity and not option.moves and k != "method"]
    made: dict[str, Any] = json.loads(json.dumps({name: getattr(config.run, name) for name in names}))
    return made


#: copies of a file of ``--network-weights`` in a run's folder: the ending says how it is read
WEIGHTS = ("network-weights.safetensors", "network-weights.pt")


def keep_weights(folder: Path, config: Configuration) -> None:
    """Copies the file of ``--network-weights`` into a run's folder, which is enough from then on."""
    if config.run.network_weights:
        given = Path(config.run.network_weights)
        copy = folder / WEIGHTS[given.suffix != ".safetensors"]
        with replacing(copy) as part:
            shutil.copyfile(given, part)


def with_kept_weights(folder: Path, config: Configuration) -> Configuration:
    """A configuration that begins with the weights in a run's folder, unless it names another file than the run did."""
    copy = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    named = config.run.network_weights
    if not named or copy is None or named != read_config(folder).run.network_weights:
        return config
    return config.with_run(network_weights=str(copy))
