"""`hierfl.fit`: a fit from Python whose folder has what `hierfl run` leaves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hierfl.calls import checked_call
from hierfl.data.federation import Federation
from hierfl.errors import UserError
from hierfl.files import is_leftover
from hierfl.inference.engines.plate import PlateEngine
from hierfl.inference.method.base import Method
from hierfl.inference.method.capabilities import is_tabular
from hierfl.inference.options import Options
from hierfl.inference.run.arguments import check_fitted, folder_of
from hierfl.inference.run.coverage import warned
from hierfl.inference.run.fit import EngineMaker, Fit
from hierfl.inference.run.fit import fit as fit_alone
from hierfl.inference.run.journal import Row
from hierfl.inference.run.progress import working
from hierfl.inference.run.result import Run
from hierfl.inference.tracking.tracking import tracker_names
from hierfl.models import METHODS

from ..config import Configuration, RunConfig, options
from ..declared import PYTHON
from ..fingerprints import fingerprint, short_digest
from .config_file import read_config, write_config
from .files import write_metrics
from .layout import check_out, create_run_folder, lock_run_folder
from .results import write_results
from .track import tracked_run

log = logging.getLogger("hierfl")


@checked_call
def fit(
    method: Method,
    federation: Federation,
    rounds: int = 30,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    observe: Callable[[list[Row]], None] | None = None,
    track: str | Sequence[str] | None = None,
    engine: EngineMaker = PlateEngine,
    **options: Any,
) -> Run:
    """Fits a method to a federation.

    With ``folder=`` it leaves what ``hierfl run --out`` leaves: configuration, metrics, clients, posterior, figures,
    summary, checkpoint, and the model that :func:`hierfl.load_run` reads. A method of formulas or of a plain Pyro
    model, and an engine other than the plate, leave checkpoints alone.

    Args:
        method: what to fit.
        federation: to what.
        rounds: T.
        folder: where to keep the run; None for nowhere.
        resume: go on from the checkpoint in ``folder``. The result is the one an uninterrupted fit would have given.
        overwrite: whether a run that is in ``folder`` may be replaced.
        progress: a bar on standard error, if it takes longer than two seconds.
        observe: called with all metrics rows after each evaluation.
        track: trackers, such as ``"csv,tensorboard"``, in which the run is called as ``folder``. A fit that goes on has
            those that it began with, unless others are named.
        engine: where the clients are; see :class:`~hierfl.inference.engines.base.Engine`.
        **options: fields of :class:`~hierfl.inference.options.Options`.

    Raises:
        UserError: for options out of range, a folder that exists, or a checkpoint that cannot be used.
    """
    target = folder_of(folder)
    check_fitted(method, federation)
    # Checkpoints of earlier versions, and of hierfl.inference.fit, lie in the folder itself.
    plain = target is not None and resume and not (target / "config.toml").is_file()
    if target is None or plain or engine is not PlateEngine or federation.outline or is_tabular(method):
        return fit_alone(
            method, federation, rounds, folder=folder, resume=resume, progress=progress, observe=observe, track=track,
            engine=engine, **options,
        )  # fmt: skip
    trackers = ",".join(tracker_names(track)) or None
    federation = replace(federation, about={"data": "data", "split": "natural", "redraws": 0, **federation.about})
    ready = Fit(method, federation, Options.for_method(method, rounds=rounds, **options), engine)
    if resume:
        config = read_config(target)
        if not config.run.data.startswith(PYTHON):
            raise UserError(f"{target} was begun by a command: go on with hierfl run --resume {target}")
        with lock_run_folder(target):
            return _fitted(ready, target, progress, observe, trackers or config.run.track, resume=True)
    fresh = target.is_dir() and all(map(is_leftover, target.iterdir()))
    if target.exists() and not (overwrite or fresh):
        raise UserError(f"{target} exists: another folder=, overwrite=True, or resume=True goes on there")
    check_out(target, overwrite or fresh)
    config = _configuration(method, federation, ready.options).with_run(track=trackers)
    with create_run_folder(target, overwrite or fresh, "", config) as made:
        return _fitted(ready, made, progress, observe, trackers, resume=False)


def _fitted(
    ready: Fit, folder: Path, progress: bool, observe: Callable[[list[Row]], None] | None, track: str | None, *,
    resume: bool,
) -> Run:  # fmt: skip
    """Fits, and writes everything; a run whose results cannot be written is returned all the same."""

    with tracked_run(folder, track, resumed=resume) as tracking:

        def observed(rows: list[Row]) -> None:
            write_metrics(folder, rows)
            tracking.observe(rows)
            if observe is not None:
                observe(rows)

        run = warned(ready.run(folder / "checkpoint", resume=resume, progress=progress, observe=observed))
        if (config := read_config(folder)).run.rounds != ready.options.rounds:  # a fit may go on for more of them
            write_config(folder, config.with_run(rounds=ready.options.rounds))
        try:
            with working("drawing from the posterior, writing results", progress):
                summary = write_results(folder, run, ready.method.name or type(ready.method).__name__)
            tracking.finish(run.rounds, summary, sorted((folder / "figures").glob("*.png")))
        except (UserError, OSError) as error:
            log.warning("results are not in %s: %s", folder, error)
    return run


def _configuration(method: Method, federation: Federation, how: Options) -> Configuration:
    """What config.toml says of a fit from Python: its data are known to it alone."""
    facts, noise = federation.about, method.network.noise
    sizes = {split: sum(federation.sizes(split)) for split in ("train", "validation")}
    cls = type(method)
    reference, digest = _reference(cls)
    network = method.given_network
    run = RunConfig(
        method=reference, method_digest=digest, data=f"{PYTHON}{facts['data']}", data_root="data",
        clients=federation.clients, split=str(facts["split"]), network=network.spec, head=_head(network),
        validation_fraction=round(sizes["validation"] / max(1, sum(sizes.values())), 6),
        response_sd=float(noise) if isinstance(noise, int | float) else 1.0,
        learn_sd=str(network.learned or "no"), settings_chosen="",
        redraws=int(facts["redraws"]), federation=federation.digest(),
        **{name: getattr(how, name) for name, declared in options().items() if declared.fit},
    )  # fmt: skip
    return Configuration(run, dict(vars(method.settings)))


def _head(network: object) -> str | None:
    """A head that is not the last layer alone, as ``--head`` says it."""
    head = str((getattr(network, "recipe", None) or {}).get("head", "linear"))
    return None if head == "linear" else head


def _reference(cls: type[Method]) -> tuple[str, str]:
    """What finds a method's class again, and its fingerprint; of a class that no command has loaded its name."""
    for name, entry in METHODS.items():
        if (entry.module, entry.cls) == (cls.__module__, cls.__qualname__):
            path = _file(cls)
            return name, "" if path is None else fingerprint(cls, path.read_bytes())
    path = _file(cls)
    if path is not None and cls.__module__ == f"hierfl_method_{path.stem}":  # as hierfl.experiments.methods.load has
        return str(path), fingerprint(cls, path.read_bytes())
    return f"{cls.__module__}.{cls.__qualname__}", "" if path is None else short_digest(path.read_bytes())


def _file(cls: type[Method]) -> Path | None:
    import inspect

    try:
        return Path(inspect.getfile(cls)).resolve()
    except (OSError, TypeError):
        return None
