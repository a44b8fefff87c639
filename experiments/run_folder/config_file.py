"""config.toml: everything needed to repeat a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from hierfl.errors import UserError
from hierfl.files import is_leftover
from hierfl.schema import AnyOf, Number, Schema, check, read_toml

from .files import write_text

OF_TABLES = ("formula", "client", "family", "error", "test")
#: what a run's configuration must hold; ranges are those of the options
RUN: Schema = {
    **dict.fromkeys(("method", "method_digest", "data", "data_root", "split", "network", "device", "idle", "ood"), str),
    **dict.fromkeys(("clients", "rounds", "evaluate_every", "quorum", "draws", "seed", "chunk"), Number(int, 0)),
    **dict.fromkeys(("validation", "noise", "participation", "max_message_ratio"), Number(float, 0)),
    "observed_data": bool, "redraws?": Number(int, 0),
    **dict.fromkeys(("data_origin?", "settings_chosen?", "federation?"), str),
}  # fmt: skip
OF_TABLE: Schema = {**dict.fromkeys(("formula", "client", "family", "error"), str), "test": Number(float, 0)}
#: of options that are newer than some runs: what those did
NEWER = {"ood": "", "idle": "train", "observed_data": True, "max_message_ratio": 1e6}
CONFIG: Schema = {"run": dict, "settings": {"*": AnyOf(Number(), str, bool)}}


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Everything needed to repeat the run."""
    write_text(folder / "config.toml", tomli_w.dumps(config))


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a run.

    Raises:
        UserError: if the folder is not a run's, or its configuration is damaged.
    """
    path = folder / "config.toml"
    if not path.is_file():
        left = folder.is_dir() and any(folder.iterdir()) and all(map(is_leftover, folder.iterdir()))
        hint = f"; a start that failed has left it: begin again with --out {folder} --overwrite" if left else ""
        raise UserError(f"{folder} is not the folder of a run: it has no config.toml{hint}")
    config = read_toml(path, CONFIG)
    run: dict[str, Any] = config["run"]
    for name, value in NEWER.items():
        run.setdefault(name, value)
    check(run, RUN, path, "run")
    if run["network"] == "design":
        check(run, OF_TABLE, path, "run")
    return config
