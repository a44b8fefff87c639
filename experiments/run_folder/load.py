"""A finished run again, from its folder.

A method of a user's own file is known by the file's digest, and runs where the user has named or run it before
(:mod:`..trust`).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierfl.argument_types import typed_call
from hierfl.data.column_federation import design_of
from hierfl.data.federation import Federation
from hierfl.errors import UserError
from hierfl.files import user_path
from hierfl.inference.method.base import Method
from hierfl.inference.method.capabilities import is_tabular, reads_columns
from hierfl.inference.method.settings import applicable
from hierfl.inference.run import kept
from hierfl.inference.run.result import Run
from hierfl.models.any_model.fitted_model import FittedModel
from hierfl.models.mixed_effects.after import rowless
from hierfl.models.mixed_effects.fitted_model import FittedMixedModel
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks import written

from .. import methods
from ..fingerprints import own_part
from .config_file import read_config
from .kept_model import MODEL, configured
from .loaded_models import LoadedMixedModel, LoadedModel
from .resume import restore
from .summary import read_summary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hierfl.inference.state import State

    from ..config import Configuration

log = logging.getLogger("hierfl")


@typed_call
def load_run(
    folder: str | Path,
    *,
    rows: bool = False,
    network: Architecture | None = None,
    method: str | type[Method] | None = None,
    federation: Federation | None = None,
    trust_code: bool = False,
) -> Run | FittedMixedModel | FittedModel:
    """A finished run again, without its data: it predicts as it did, to the bit.

    Args:
        folder: of ``hierfl run``, or of :func:`hierfl.fit` with ``folder=``.
        rows: whether to read the data again, from where the run has them: for ``posterior()`` with other draws, for
            methods that predict given a client's training rows, and for splines of a formula.
        network: the architecture, of a run whose base network is a module that is no chain of torch's own layers.
        method: where the method's file is now, or its class where that is in no file (a notebook).
        federation: the data that were fitted, instead of ``rows=True``.
        trust_code: whether to run a method's file that this user has neither named nor run before.

    Returns:
        The run; of a mixed-effects model the fitted mixed model, and of a plain Pyro model the fitted model, as
        :func:`hierfl.mixed_model` and :func:`hierfl.fit_model` give them. Both have the run as ``.run``.

    Raises:
        UserError: for a folder that holds no finished run, or one from before runs kept their models; for a method's
            file that has changed, or is not known to be this user's; for other data.
    """
    path = user_path(folder)
    config = read_config(path)
    read_summary(path)
    if not (path / MODEL / "checkpoint.json").is_file():
        raise UserError(
            f"{path} has no {MODEL}/: it was not copied, or was written before runs kept their models: hierfl run "
            f"--resume {path} writes it again, from its checkpoint and the data"
        )
    state, record = kept.read(path / MODEL)
    _check_one_run(path, config, record)
    if rows:
        return _with_rows(path, config, state, record, trust_code=trust_code or method is not None)
    cls = _class_of(path, config, method, trust_code=trust_code)
    if is_tabular(cls) is not (record["network"] is None):
        kinds = ("of a table", "of a network")
        raise UserError(
            f"{path}: {cls.__name__} is a method {kinds[not is_tabular(cls)]}, and the model in {MODEL}/ is "
            f"{kinds[record['network'] is not None]}: config.toml or {MODEL}/ is of another run, or was changed"
        )
    if is_tabular(cls):
        if network is not None or federation is not None:
            raise UserError(f"network= and federation= are of runs of networks, and {path} is of a table: rows=True")
        made = _of_columns if reads_columns(cls) else _mixed
        return made(path, cls, config, state, record)
    tensors = kept.under(state, "method/")
    plain = _made(cls, written.read(record["network"], tensors, network), config)
    federation_kept = kept.federation_of(state, record)
    if federation is None:
        return kept.run_of(plain, state, record, federation_kept, path)
    data = federation.to("cpu", federation_kept.dtype)
    if data.digest() != federation_kept.digest():
        raise UserError(f"federation= holds other data than {path} was run on, or splits them otherwise")
    scales = {name: getattr(federation_kept, name) for name in ("mean", "std", "response_units", "standard_response")}
    return kept.run_of(plain, state, record, replace(data, **scales))


def predicts_alone(loaded: Run | FittedMixedModel | FittedModel) -> bool:
    """Whether a loaded run predicts without the rows that were fitted."""
    if isinstance(loaded, Run):
        return not loaded.fitted.method.conditions
    return not isinstance(loaded, LoadedMixedModel) or "reader" in loaded.run.fitted.federation.about


def _with_rows(
    folder: Path, config: Configuration, state: State, record: dict[str, Any], *, trust_code: bool
) -> Run | FittedMixedModel | FittedModel:
    """The same, of the data that its configuration names."""
    ready, _ = restore(folder, config.with_run(device="cpu"), progress=False, trust_code=trust_code)
    run = kept.run_of(ready.method, state, record, ready.federation, as_fitted=True)
    if not is_tabular(ready.method):
        return run
    return FittedModel(run) if reads_columns(type(ready.method)) else FittedMixedModel(run, str(config.run.formula))


def _check_one_run(folder: Path, config: Configuration, record: Mapping[str, Any]) -> None:
    """Refuses a folder whose configuration and model are of different runs: it would predict, and say nothing."""
    run, data = config.run, record["federation"].get("digest")
    settings = record.get("settings", {})  # of runs that were written before, nothing is known
    pairs = {"data": (run.federation, data), "seed": (run.seed, record["seed"])}
    pairs |= {f"setting {name}": (config.settings.get(name), value) for name, value in settings.items()}
    now, fitted = configured(config), record.get("configured", {})
    pairs |= {k: (now[k] or "-", value or "-") for k, value in fitted.items() if k in now and k not in pairs}
    for what, (configured_as, kept_value) in pairs.items():
        if None not in (configured_as, kept_value) and configured_as != kept_value:
            raise UserError(
                f"{folder}: config.toml has the {what} {configured_as}, and the model in {MODEL}/ {kept_value}: one of "
                "them is of another run, or was changed"
            )


def _made(cls: type[Method], network: Architecture, config: Configuration) -> Method:
    return cls(network, **applicable(cls, config.settings))


def _class_of(
    folder: Path, config: Configuration, method: str | type[Method] | None, *, trust_code: bool
) -> type[Method]:
    """The class of a run's method; a file of ours that has changed since is said, and does not stop predictions."""
    run = config.run
    if isinstance(method, type):
        return method
    if method is not None:
        run = config.with_run(method=str(user_path(method).resolve())).run
    if run.method in methods.METHODS:
        loaded = methods.load(run.method)
        if own_part(loaded.digest) != own_part(run.method_digest):
            log.warning("%s has changed since %s was written: predictions may be others", loaded.source, folder)
        return loaded.cls
    if not run.method.endswith(".py"):
        raise UserError(f"the method of {folder} is {run.method}, of no file: load_run(folder, method=CLASS) takes it")
    return methods.load_of(folder, run.as_table(), trust_code=trust_code or method is not None).cls


def _mixed(
    folder: Path, cls: type[Method], config: Configuration, state: State, record: dict[str, Any]
) -> FittedMixedModel:
    design = record["design"]
    effects = kept.under(state, f"method/{rowless.KEPT}/")
    federation = rowless.federation_of(design, list(record["federation"]["ids"]), effects)
    made = _made(cls, rowless.design_of(design), config)
    run = kept.run_of(made, state, record, federation.to("cpu", kept.options_of(record).dtype), folder)
    return LoadedMixedModel(run, str(config.run.formula))


def _of_columns(
    folder: Path, cls: type[Method], config: Configuration, state: State, record: dict[str, Any]
) -> FittedModel:
    federation = kept.federation_of(state, record)
    design = replace(design_of(federation), rows=max(federation.sizes()))
    return LoadedModel(kept.run_of(_made(cls, design, config), state, record, federation, folder))
