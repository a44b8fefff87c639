"""From a configuration to a finished run folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hierfl.data import tables
from hierfl.data.datasets import registry
from hierfl.data.federation import Federation
from hierfl.data.formula import gate
from hierfl.data.formula.federate import from_formula
from hierfl.data.npz import ARRAYS
from hierfl.data.readers.safe_files import located, regular_file
from hierfl.errors import UserError
from hierfl.files import user_path
from hierfl.inference.messages.limits import MAX_MESSAGE_RATIO
from hierfl.inference.method.settings import applicable, make_settings
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.inference.run.progress import working
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture
from hierfl.schema import read_json

from . import folder as folders
from . import methods

OPTIONS = (
    "rounds", "seed", "participation", "quorum", "evaluate_every", "draws", "chunk", "device",
    "max_message_ratio",
)  # fmt: skip


def configure(method: str, data: str | None, given: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A complete configuration from what was said and, where nothing was, the data set's and method's own choices.

    Args:
        method: name or path.
        data: data set, ``.npz`` or table; None for the method's usual one.
        given: clients, split, rounds, ... as said on the command line; None where nothing was.
        settings: the method's settings as said.

    Returns:
        Tables "run" and "settings", as they go to config.toml.

    Raises:
        UserError: for anything that cannot be used.
    """
    empty = [name for name, value in {"data": data, **given}.items() if value == ""]
    if empty:
        raise UserError(f"--{empty[0].replace('_', '-')} is empty; leave it out for what is usual")
    loaded = methods.load(method)
    data = data or ("radon-like" if loaded.cls.tabular else "digits")
    default, said = registry.defaults(data), {k: v for k, v in given.items() if v is not None}
    _check_kind(loaded, data, said)
    run = {
        "method": loaded.reference,
        "method_digest": loaded.digest,
        "data": _absolute("data", data),
        "data_root": _absolute("data_root", said.get("data_root", "data")),
        "clients": said.get("clients", default.clients),
        "split": said.get("split", default.split or "natural"),
        "validation": said.get("validation", 0.1),
        "network": said.get("network", default.network),
        "noise": said.get("noise", default.noise),
        "rounds": said.get("rounds", default.rounds),
        "participation": said.get("participation", default.participation),
        "evaluate_every": said.get("evaluate_every", default.evaluate_every),
        "quorum": said.get("quorum", default.quorum),
        "max_message_ratio": said.get("max_message_ratio", MAX_MESSAGE_RATIO),
        "idle": said.get("idle", "train"),
        "ood": _absolute("ood", said.get("ood", "")),
        "draws": said.get("draws", 20),
        "observed_data": said.get("observed_data", True),
        "seed": said.get("seed", 0),
        "device": said.get("device", "cpu"),
        "chunk": said.get("chunk", default.chunk),
    }
    if tables.is_table(data):
        run |= _table_options(data, said)
    if "prior" in settings and "prior" not in loaded.cls.Settings.__dataclass_fields__:
        raise UserError(f"{loaded.name} has no prior to choose")
    shipped, chosen = methods.shipped_settings(loaded.name, data)
    # (what was chosen for one prior may say nothing under another)
    values = make_settings(loaded.cls, {**applicable(loaded.cls, shipped, settings), **settings})
    if chosen:
        ours = make_settings(loaded.cls, applicable(loaded.cls, shipped, {}))
        other = [f"{k}={getattr(values, k)}" for k in settings if getattr(values, k) != getattr(ours, k)]
        run["settings_chosen"] = chosen + (f"; other than that, as said: {', '.join(other)}" if other else "")
    if said.get("clients", 1) < 1:
        raise UserError(f"a federation needs at least one client, not {run['clients']}")
    config = {"run": run, "settings": {k: getattr(values, k) for k in values.__dataclass_fields__}}
    options_of(config)  # out of range? say so before anything is loaded
    return config


def settings_said(pairs: Sequence[str], prior: str | None = None) -> dict[str, str]:
    """Settings as KEY=VALUE, and what --prior says.

    Raises:
        UserError: for another form, or one that is set twice.
    """
    settings: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"settings are said as KEY=VALUE, not {pair!r}")
        if key in settings or (key == "prior" and prior is not None):
            raise UserError(f"{key} is set twice")
        settings[key] = value
    return settings if prior is None else {**settings, "prior": prior}


def build(config: Mapping[str, Any], loaded: methods.Loaded | None = None) -> tuple[Fit, str]:
    """The fit that a configuration describes, checked and ready, and the method's name.

    Args:
        config: tables "run" and "settings".
        loaded: its method; None for one that was named in this command.
    """
    run = config["run"]
    options_of(config)  # (out of range? say so before anything is loaded)
    loaded = loaded or methods.load(run["method"])
    made = _from_table(run) if tables.is_table(run["data"]) else _from_pool(run, loaded.cls.latent)
    federation, network = made
    if run["ood"]:
        strange_inputs(run, federation)  # (not there, or of another shape? say so before anything is fitted)
    try:
        return Fit(
            loaded.cls(network, **applicable(loaded.cls, config["settings"])), federation, options_of(config)
        ), loaded.name
    except UserError:
        raise
    except Exception as error:
        if loaded.reference in methods.METHODS:
            raise  # a fault of ours: show all of it
        raise UserError(f"{loaded.source} does not run: {methods.blame(loaded.source, error)}") from error


def _from_pool(run: Mapping[str, Any], latent: bool) -> tuple[Federation, Architecture]:
    pool = registry.load(run["data"], Path(run["data_root"]), run["seed"])
    clients = run["clients"]
    if not clients and not run["split"].startswith("natural"):
        raise UserError(f"say how many clients share {pool.name}: --clients J")
    federation = Federation.from_pool(pool, clients, run["split"], validation=run["validation"], seed=run["seed"])
    network = architecture(run["network"], federation, run["noise"], latent)
    if federation.task == "classification" and run["noise"] != 1.0:
        raise UserError("--noise is a regression's, and this is a classification")
    return federation, network


#: strange inputs that every client's model is shown
STRANGE = 1000


def strange_inputs(run: Mapping[str, Any], federation: Federation) -> np.ndarray | None:
    """Test inputs of the data set ``ood``, raw, at most :data:`STRANGE` of them, the same each time; None without one.

    They are standardised as the federation's own are: a model is shown them as if they were its data.

    Raises:
        UserError: where they cannot be the inputs of this federation's models.
    """
    if not run["ood"]:
        return None
    if federation.task != "classification":
        raise UserError("--ood asks for predictive entropies, which are a classification's")
    if run["ood"] == run["data"]:
        raise UserError(f"--ood {run['ood']} is what the models are made for: say another data set")
    pool = registry.load(run["ood"], Path(run["data_root"]))
    if pool.x_test.shape[1:] != federation.event_shape or (pool.x_test.dtype == np.uint8) != (
        federation.x.dtype == torch.uint8
    ):
        raise UserError(
            f"inputs of {pool.name} have shape {pool.x_test.shape[1:]}, not {tuple(federation.event_shape)}"
        )
    order = np.random.default_rng(0).permutation(len(pool.x_test))[:STRANGE]
    return pool.x_test[np.sort(order)]


# -- tables ------------------------------------------------------------------------------------------------------------

OF_POOLS = ("clients", "split", "network", "noise", "ood")


def _check_kind(loaded: methods.Loaded, data: str, said: Mapping[str, Any]) -> None:
    """A table for methods that read formulas, arrays for the others, and the options that belong to each."""
    table = tables.is_table(data)
    if table != loaded.cls.tabular:
        wanted = f"a table: FILE.csv, {', '.join(tables.TABLES)}" if loaded.cls.tabular else "a data set or FILE.npz"
        raise UserError(f"{loaded.name} needs {wanted}; not {data}")
    for name in OF_POOLS if table else folders.OF_TABLES:
        if name in said:
            kind = "a table's, and this is a data set" if not table else "a data set's, and this is a table"
            raise UserError(f"--{name} is {kind}")


def _table_options(data: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """What a run on a table is configured by."""
    named = tables.TABLES.get(data)
    formula = said.get("formula", named.formula if named else None)
    if formula is None:
        raise UserError(f"say what to fit to {data}: --formula 'y ~ 1 + x + (1 + x | site)'")
    return {
        "clients": 0, "split": "natural", "validation": said.get("validation", 0.0), "network": "design",
        "formula": formula,
        "client": said.get("client", named.client if named and "formula" not in said else ""),
        "family": said.get("family", named.family if named else "gaussian"),
        "error": said.get("error", named.error if named else ""),
        "test": said.get("test", 0.0),
        "rounds": said.get("rounds", named.rounds if named else 80),
        "chunk": said.get("chunk", 1000),  # rows are short: many of them at once
        "evaluate_every": said.get("evaluate_every", 10),
    }  # fmt: skip


def _from_table(run: Mapping[str, Any]) -> tuple[Federation, Architecture]:
    terms = gate.parse(run["formula"])
    used = {*(terms.response or ()), *terms.predictors, run["error"]}
    df = tables.read(run["data"], used, terms.groups)
    federation, design = from_formula(
        df, run["formula"], family=run["family"], client=run["client"] or None, error=run["error"] or None,
        test=run["test"], validation=run["validation"], seed=run["seed"],
    )  # fmt: skip
    name = run["data"] if run["data"] in tables.TABLES else Path(run["data"]).stem
    return replace(federation, about={**federation.about, "data": name, "split": run["formula"]}), design


def start(config: dict[str, Any], out: Path | None, overwrite: bool, progress: bool) -> tuple[Path, dict[str, Any]]:
    """Runs a configuration into a fresh folder; returns the folder and its summary."""
    folders.check_out(out, overwrite)
    with working("loading data", progress):
        ready, name = build(config)
    about = ready.federation.about
    config["run"] |= {"redraws": int(about["redraws"]), "federation": ready.federation.digest()}
    if about.get("origin"):
        config["run"]["data_origin"] = about["origin"]
    with folders.begun(out, overwrite, f"{name}-{about['data']}", config) as folder:
        return folder, _run(ready, folder, name, progress, config["run"], resume=False)


#: what may be said of a run that goes on elsewhere
PLACE = ("data", "data_root", "device")


def resume(
    folder: Path, progress: bool, place: Mapping[str, Any] | None = None, *, method: str = "", trust_code: bool = False
) -> dict[str, Any]:
    """Goes on where a run stopped; returns the summary.

    Args:
        folder: the run's.
        progress: whether to show it.
        place: where it goes on, if elsewhere: :data:`PLACE`.
        method: where the method's file is, if elsewhere.
        trust_code: whether to run a method's file that this user has neither named nor run before.

    Raises:
        UserError: if the folder is not a run's, its checkpoint cannot be used, the method's file has changed, or the
            data are others.
        Busy: if another process is running there.
    """
    folders.read_config(folder)  # (not the folder of a run? say so before there is a lock in it)
    with folders.alone(folder):
        config = folders.read_config(folder)
        _elsewhere(config["run"], place, method)
        ready, name = _restored(folder, config, progress, trust_code or bool(method))
        if place or method:
            folders.write_config(folder, config)
        # killed before its first checkpoint was written, a run has done nothing yet: it begins again
        begun = (folder / "checkpoint" / "checkpoint.json").is_file() or (folder / "metrics.csv").is_file()
        return _run(ready, folder, name, progress, config["run"], resume=begun)


def _elsewhere(run: dict[str, Any], place: Mapping[str, Any] | None, method: str = "") -> None:
    """Puts where a run's data and method are now into its configuration."""
    run |= {k: _absolute(k, v) for k, v in (place or {}).items()}
    if not method:
        return
    found = str(user_path(method).resolve()) if method.endswith(".py") else method
    if run["method"] in methods.METHODS and found != run["method"]:
        raise UserError(f"the run is one of {run['method']}, not of {method}")
    run["method"] = found


def _absolute(option: str, value: Any) -> Any:
    """Paths of data as they are kept in a configuration: a data set's name stays."""
    if option == "data_root":
        return str(located(value))
    if option in ("data", "ood") and str(value).endswith((".npz", ".csv")):
        is_table = str(value).endswith(".csv")
        return str(regular_file(value, "a .csv with a header" if is_table else f"an .npz with {', '.join(ARRAYS)}"))
    return value


def _restored(folder: Path, config: dict[str, Any], progress: bool, trust_code: bool) -> tuple[Fit, str]:
    """The fit of a run's folder: of the same method, on the same data.

    Raises:
        UserError: for a method's file that has changed or is not known to be this user's, and for other data.
    """
    loaded = methods.load_of(folder, config["run"], trust_code=trust_code)
    with working("loading data", progress):
        ready, name = build(config, loaded)
    digest = ready.federation.digest()
    if config["run"].get("federation", digest) != digest:  # (older runs do not say; their checkpoints do)
        raise UserError(f"{config['run']['data']} holds other data than {folder} was run on, or splits them otherwise")
    return ready, name


def report(
    folder: Path, place: Mapping[str, Any], progress: bool, features: bool = True, rhat: bool = False,
    trust_code: bool = False,
) -> list[Path]:  # fmt: skip
    """One page of a finished run or a comparison, ``report.html``; of a run with a network its features, too.

    Args:
        folder: the run's or comparison's.
        place: where the data are, if elsewhere: data, data_root.
        progress: whether to show what takes its time.
        features: whether to draw them, which needs the data.
        rhat: insists on several chains.
        trust_code: whether to run a method's file that this user has neither named nor run before.

    Returns:
        The page, and what was drawn for it, in ``figures``.

    Raises:
        UserError: for a folder that is neither; where features are to be drawn, for a method's file that has changed,
            data that are not there, or too few of them; for one chain where R-hat was asked for.
    """
    from . import compare, page

    if (folder / "comparison.json").is_file():
        if rhat:
            raise UserError(f"{folder} is a comparison: R-hat is a run's")
        if place or trust_code:
            raise UserError(f"{folder} is a comparison: where data are, and whom to trust, are a run's")
        record = read_json(folder / "comparison.json", {"runs": {"*": {"*": str}}})
        runs = [folder / run for runs in record["runs"].values() for run in runs.values()]
        found = compare.compared([Path(os.path.normpath(run)) for run in runs])
        return [folder / "report.html", *compare.write(found, folder)]
    config = folders.read_config(folder)
    folders.read_summary(folder)  # (not finished? say so first)
    wanted = features and config["run"]["network"] != "design"
    if (place or trust_code) and not wanted:
        raise UserError("data and method are needed for features, which are not drawn here")
    drawn = draw_posterior(folder, progress, rhat)
    drawn += draw_features(folder, config, place, progress, trust_code) if wanted else []
    return [page.of_run(folder), *drawn]


def draw_posterior(folder: Path, progress: bool, rhat: bool) -> list[Path]:
    """Forest, chains, posterior-predictive checks of a run's posterior.nc; the pictures, none where it has no draws.

    Raises:
        UserError: where R-hat was asked for, and there are not several chains.
    """
    from hierfl.arviz_io import read
    from hierfl.plots.posterior import panels
    from hierfl.plots.posterior_numbers import mixing
    from hierfl.plots.saving import save_all

    path = folder / "posterior.nc"
    if not path.is_file():
        if rhat:
            raise UserError(f"{folder} has no draws (posterior.nc)")
        return []
    with working("drawing the posterior", progress):
        data = read(path)
        if rhat:
            mixing(data)
        return save_all(folder / "figures", panels(data), folder.name, "posterior")


def draw_features(
    folder: Path, config: dict[str, Any], place: Mapping[str, Any], progress: bool, trust_code: bool
) -> list[Path]:
    """Features of test data in the plane, by class and by client; the pictures.

    Raises:
        UserError: for a method's file that has changed, data that are not there, or too few of them.
    """
    from hierfl.inference.evaluation.features import features
    from hierfl.plots.features import embedding, feature_map
    from hierfl.plots.saving import save_all

    _elsewhere(config["run"], place)
    ready, name = _restored(folder, config, progress, trust_code)
    with working("reading the checkpoint", progress):
        run = ready.run(folder / "checkpoint", resume=True, progress=False)
    with working("laying features out in the plane", progress):
        z, labels, clients = features(run.fitted)
        if len(z) < 3:
            raise UserError(f"{folder} has {len(z)} test examples, too few to draw")
        places = embedding(z)
        drawn = {"features-clients": lambda ax: feature_map(places, clients, "client", ax)}
        if run.fitted.federation.task == "classification":
            drawn = {"features-classes": lambda ax: feature_map(places, labels, "class", ax), **drawn}
        about = run.fitted.federation.about
        return save_all(folder / "figures", drawn, f"{name} on {about['data']}, {about['split']}", "features")


def options_of(config: Mapping[str, Any]) -> Options:
    """How a configuration is run."""
    run = config["run"]
    given = {k: run[k] for k in OPTIONS}
    given["absent_clients"] = {"train": "train", "rest": "catch-up", "never": "freeze"}[run["idle"]]
    if tables.is_table(run["data"]):  # a statistician's digits; and where no rows are held out, the fit itself
        given |= {"dtype": torch.float64, "splits": ("test",) if run["test"] else ("train",)}
    return Options(**given)


def _run(
    ready: Fit, folder: Path, name: str, progress: bool, config: Mapping[str, Any], *, resume: bool
) -> dict[str, Any]:
    def say(text: str) -> None:
        if progress:
            print(text, file=sys.stderr, flush=True)

    if not resume:
        say(f"writing to {folder}")
        if "settings_chosen" not in config and not tables.is_table(config["data"]):
            say(f"no settings ship for {name} on {config['data']}: its defaults, where nothing was said")
    try:
        run = ready.run(
            folder / "checkpoint",
            resume=resume,
            progress=progress,
            observe=lambda rows: folders.write_metrics(folder, rows),
        )
        with working("drawing from the posterior, writing results", progress):
            strange = strange_inputs(config, ready.federation)
            return folders.write_results(folder, run, name, config["ood"], strange, config["observed_data"])
    except KeyboardInterrupt:
        say(f"stopped; go on with: hierfl run --resume {folder}")
        raise
    except Exception as error:
        if config["method"] in methods.METHODS or isinstance(error, UserError | OSError):
            raise
        source = Path(config["method"])
        what = f"{source} failed at round {ready.round} of {ready.options.rounds}: {methods.blame(source, error)}"
        raise UserError(what) from error
