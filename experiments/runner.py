"""From a configuration to a finished run folder."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hierfl import datasets
from hierfl.errors import UserError
from hierfl.federation import Federation
from hierfl.inference.method import make_settings
from hierfl.inference.progress import working
from hierfl.inference.run import Fit, Options
from hierfl.networks import architecture

from . import folder as folders
from . import methods

OPTIONS = ("rounds", "seed", "participation", "quorum", "evaluate_every", "idle", "draws", "chunk", "device")


def configure(method: str, data: str, given: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A complete configuration from what was said and, where nothing was, the data set's and method's own choices.

    Args:
        method: name or path.
        data: data set or ``.npz``.
        given: clients, split, rounds, ... as said on the command line; None where nothing was.
        settings: the method's settings as said.

    Returns:
        Tables "run" and "settings", as they go to config.toml.

    Raises:
        UserError: for anything that cannot be used.
    """
    loaded, default = methods.load(method), datasets.defaults(data)
    said = {k: v for k, v in given.items() if v is not None}
    run = {
        "method": loaded.reference,
        "method_digest": loaded.digest,
        "data": data if not data.endswith(".npz") else str(Path(data).resolve()),
        "data_root": str(Path(said.get("data_root", "data")).resolve()),
        "clients": said.get("clients", default.clients),
        "split": said.get("split", default.split or "natural"),
        "validation": said.get("validation", 0.1),
        "network": said.get("network", default.network),
        "noise": said.get("noise", 1.0),
        "rounds": said.get("rounds", default.rounds),
        "participation": said.get("participation", default.participation),
        "evaluate_every": said.get("evaluate_every", default.evaluate_every),
        "quorum": said.get("quorum", default.quorum),
        "idle": said.get("idle", "train"),
        "draws": said.get("draws", 20),
        "seed": said.get("seed", 0),
        "device": said.get("device", "cpu"),
        "chunk": said.get("chunk", 0),
    }
    if "prior" in settings and "prior" not in loaded.cls.Settings.__dataclass_fields__:
        raise UserError(f"{loaded.name} has no prior to choose")
    shipped, chosen = methods.shipped_settings(loaded.name, data)
    values = make_settings(loaded.cls, {**shipped, **settings})
    if chosen:
        run["settings_chosen"] = chosen
    if said.get("clients", 1) < 1:
        raise UserError(f"a federation needs at least one client, not {run['clients']}")
    config = {"run": run, "settings": {k: getattr(values, k) for k in values.__dataclass_fields__}}
    _options(config)  # out of range? say so before anything is loaded
    return config


def build(config: Mapping[str, Any]) -> tuple[Fit, str]:
    """The fit that a configuration describes, checked and ready, and the method's name."""
    run = config["run"]
    loaded = methods.load(run["method"])
    pool = datasets.load(run["data"], Path(run["data_root"]))
    clients = run["clients"]
    if not clients and not run["split"].startswith("natural"):
        raise UserError(f"say how many clients share {pool.name}: --clients J")
    federation = Federation.from_pool(pool, clients, run["split"], validation=run["validation"], seed=run["seed"])
    network = architecture(run["network"], federation, run["noise"])
    if federation.task == "classification" and run["noise"] != 1.0:
        raise UserError("--noise is a regression's, and this is a classification")
    try:
        return Fit(loaded.cls(network, **config["settings"]), federation, _options(config)), loaded.name
    except UserError:
        raise
    except Exception as error:
        if loaded.reference in methods.METHODS:
            raise  # a fault of ours: show all of it
        raise UserError(f"{loaded.source} does not run: {methods.blame(loaded.source, error)}") from error


def start(config: dict[str, Any], out: Path | None, overwrite: bool, progress: bool) -> tuple[Path, dict[str, Any]]:
    """Runs a configuration into a fresh folder; returns the folder and its summary."""
    folders.check_out(out, overwrite)
    with working("loading data", progress):
        ready, name = build(config)
    about = ready.federation.about
    config["run"]["redraws"] = int(about["redraws"])
    folder = folders.make(out, overwrite, f"{name}-{about['data']}")
    folders.write_config(folder, config)
    return folder, _run(ready, folder, name, progress, resume=False)


def resume(folder: Path, progress: bool, place: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Goes on where a run stopped; returns the summary.

    Args:
        folder: the run's.
        progress: whether to show it.
        place: where it goes on, if elsewhere: data_root, device.

    Raises:
        UserError: if the folder is not a run's, its checkpoint cannot be used, or the method's file has changed.
    """
    config = folders.read_config(folder)
    loaded = methods.load(config["run"]["method"])
    if loaded.digest != config["run"]["method_digest"]:
        raise UserError(
            f"{loaded.source} has changed since {folder} was begun; start a new run (or move that one away)"
        )
    if place:
        config["run"] |= {k: str(Path(v).resolve()) if k == "data_root" else v for k, v in place.items()}
    with working("loading data", progress):
        ready, name = build(config)
    if place:
        folders.write_config(folder, config)
    # killed before its first checkpoint was written, a run has done nothing yet: it begins anew
    begun = (folder / "checkpoint" / "checkpoint.json").is_file() or (folder / "metrics.csv").is_file()
    return _run(ready, folder, name, progress, resume=begun)


def _options(config: Mapping[str, Any]) -> Options:
    return Options(**{k: config["run"][k] for k in OPTIONS})


def _run(ready: Fit, folder: Path, name: str, progress: bool, *, resume: bool) -> dict[str, Any]:
    def say(text: str) -> None:
        if progress:
            print(text, file=sys.stderr, flush=True)

    if not resume:
        say(f"writing to {folder}")
    try:
        with folders.alone(folder):
            run = ready.run(
                folder / "checkpoint",
                resume=resume,
                progress=progress,
                observe=lambda rows: folders.write_metrics(folder, rows),
            )
            with working("drawing from the posterior, writing results", progress):
                return folders.write_results(folder, run, name)
    except KeyboardInterrupt:
        say(f"stopped; go on with: hierfl run --resume {folder}")
        raise
