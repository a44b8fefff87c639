"""A run folder goes on where it was stopped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hierfl.errors import UserError
from hierfl.files import user_path
from hierfl.inference.engines.plate import PlateEngine
from hierfl.inference.engines.ranks import follows
from hierfl.inference.run.fit import EngineMaker, Fit
from hierfl.inference.run.progress import working

from .. import methods
from ..build import build
from ..config import Configuration
from ..configure import absolute_path
from ..declared import PYTHON
from .config_file import read_config, read_config_file, write_config
from .kept_model import with_kept_weights
from .layout import lock_run_folder
from .start import fit_and_write, start


def resume(
    folder: Path,
    progress: bool,
    location: Mapping[str, Any] | None = None,
    *,
    method: str = "",
    trust_code: bool = False,
    engine: EngineMaker = PlateEngine,
) -> dict[str, Any] | None:
    """Goes on where a run stopped; returns the summary, or None in a process that does not lead.

    Args:
        folder: the run's.
        progress: whether to show it.
        location: where it goes on, if elsewhere: the options that are declared to move.
        method: where the method's file is, if elsewhere.
        trust_code: whether to run a method's file that this user has neither named nor run before.
        engine: where the clients are.

    Raises:
        UserError: if the folder is not a run's, its checkpoint cannot be used, the method's file has changed, or the
            data are others.
        Busy: if another process is running there.
    """
    config = read_config(folder)  # not the folder of a run? say so before there is a lock in it
    # killed before its first checkpoint was written, a run has done nothing yet: it begins again
    begun = (folder / "checkpoint" / "checkpoint.json").is_file() or (folder / "metrics.csv").is_file()
    if follows():
        ready, _ = restore(folder, relocate(config, location, method), progress, trust_code or bool(method), engine)
        ready.run(folder / "checkpoint", resume=begun)
        return None
    with lock_run_folder(folder):
        config = relocate(read_config(folder), location, method)
        ready, name = restore(folder, config, progress, trust_code or bool(method), engine)
        if location or method:
            write_config(folder, config)
        return fit_and_write(ready, folder, name, progress, config.run, resume=begun)


def repeat(
    path: Path, location: Mapping[str, Any], out: Path | None, overwrite: bool, progress: bool, *, trust_code: bool,
    engine: EngineMaker = PlateEngine,
) -> tuple[Path, dict[str, Any]] | None:  # fmt: skip
    """Runs again what a configuration says, into a folder of its own; as :func:`.start.start`.

    Args:
        path: of the config.toml, or of the folder of its run.
        location: where the data are now, and the device: options that are declared to move.
        out, overwrite, progress, engine: as of :func:`.start.start`.
        trust_code: whether to run a method's file that this user has neither named nor run before.

    Raises:
        UserError: for another file, a method's file that has changed, and other data.
    """
    if not path.exists():
        raise UserError(f"no file {path}")
    folder = path if path.is_dir() else path.parent
    config = relocate(read_config(path) if path.is_dir() else read_config_file(path), location)
    refuse_python(path, config)
    config = with_kept_weights(folder, config)
    loaded = methods.load_of(folder, config.run.as_table(), trust_code=trust_code)
    return start(config, out, overwrite, progress, engine, loaded)


def relocate(config: Configuration, location: Mapping[str, Any] | None, method: str = "") -> Configuration:
    """A configuration with where the run's data and method are now."""
    config = config.with_run(**{k: absolute_path(k, v) for k, v in (location or {}).items()})
    if not method:
        return config
    method_now = str(user_path(method).resolve()) if method.endswith(".py") else method
    if config.run.method in methods.METHODS and method_now != config.run.method:
        raise UserError(f"the run is one of {config.run.method}, not of {method}")
    return config.with_run(method=method_now)


def refuse_python(path: Path, config: Configuration) -> None:
    """Refuses a run whose data were a Python program's.

    Raises:
        UserError: for such a run.
    """
    if config.run.data.startswith(PYTHON):
        raise UserError(
            f"{path} is of a fit in Python, which had the data: fit(..., folder=..., resume=True) goes on, and "
            "load_run(folder, federation=...) takes them"
        )


def restore(
    folder: Path, config: Configuration, progress: bool, trust_code: bool, engine: EngineMaker = PlateEngine
) -> tuple[Fit, str]:
    """The fit of a run's folder: of the same method, on the same data.

    Raises:
        UserError: for a method's file that has changed or is not known to be this user's, and for other data.
    """
    refuse_python(folder, config)
    loaded = methods.load_of(folder, config.run.as_table(), trust_code=trust_code)
    with working("loading data", progress):
        ready, name = build(with_kept_weights(folder, config), loaded, engine)
    digest = ready.engine.digest()
    if config.run.federation not in (None, digest):  # older runs do not say; their checkpoints do
        raise UserError(f"{config.run.data} holds other data than {folder} was run on, or splits them otherwise")
    return ready, name
