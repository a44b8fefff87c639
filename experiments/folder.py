"""Run folders: what a run leaves on disk. Every file is written under another name first and then renamed."""

from __future__ import annotations

import errno
import json
import logging
import math
import platform
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tomli_w

from hierfl.errors import NotFinite, UserError
from hierfl.file_lock import locked
from hierfl.files import PART_SUFFIX, is_leftover, make_folder, sync_folder, write_whole
from hierfl.metrics.ood import ood_auroc
from hierfl.schema import AnyOf, Number, Schema, check, read_json, read_toml

from .csv_files import read_frame, write_frame, write_rows

if TYPE_CHECKING:
    import pandas as pd

    from hierfl.inference import Run

log = logging.getLogger("hierfl")

FILES = (
    "config.toml", "metrics.csv", "clients.csv", "history.csv", "participation.csv", "effects.csv", "estimates.csv",
    "posterior.nc", "summary.json", "report.html",
)  # fmt: skip
FOLDERS = ("checkpoint", "figures")
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
_NUMBERS = AnyOf(Number(), None)


def check_out(out: Path | None, overwrite: bool, mark: str = "config.toml", what: str = "run") -> None:
    """Refuses an ``--out`` that exists, unless it is a run's folder, or what a start that failed has left of one.

    Args:
        out: the folder.
        overwrite: whether it may be overwritten.
        mark: the file by which a folder of this kind is known.
        what: the kind, in words.

    Raises:
        UserError: see above.
    """
    if out is not None and out.is_symlink() and not out.exists():
        raise UserError(f"{out} is a symbolic link to nothing; choose another --out")
    if out is None or not out.exists():
        return
    if not overwrite:
        raise UserError(f"{out} exists; choose another --out, or say --overwrite")
    if not out.is_dir() or not ((out / mark).is_file() or all(map(is_leftover, out.iterdir()))):
        raise UserError(f"{out} is not the folder of a {what}; --overwrite replaces only those")


@contextmanager
def begun(
    out: Path | None, overwrite: bool, label: str, config: Mapping[str, Any], root: Path = Path("runs")
) -> Iterator[Path]:
    """A fresh folder that holds its configuration, and is this process's alone.

    A new folder appears with its configuration in it. Of an old one the configuration is replaced last: whenever a
    process is killed, what is there can be resumed, or overwritten.

    Args:
        out: the folder; None for the next numbered one under ``root``.
        overwrite: whether a run that is there may be replaced.
        label: of a numbered folder.
        config: what is run.
        root: where numbered folders are.

    Raises:
        UserError: see :func:`check_out`.
        Busy: if another process is running there.
    """
    check_out(out, overwrite)
    if out is not None and out.exists():
        with alone(out):
            check_out(out, overwrite)  # (another process may have been faster)
            _empty(out)
            write_config(out, config)
            yield out
        return
    with _appearing(out, re.sub(r"[^\w.-]", "-", label), root) as (part, appear), alone(part):
        write_config(part, config)
        yield appear()


@contextmanager
def _appearing(out: Path | None, label: str, root: Path) -> Iterator[tuple[Path, Callable[[], Path]]]:
    """A folder under a hidden name, and what gives it the name of a new run."""
    parent = root if out is None else out.parent
    make_folder(parent)
    part = parent / f".{label if out is None else out.name}.{secrets.token_hex(4)}{PART_SUFFIX}"
    part.mkdir()

    def appear() -> Path:
        while True:
            folder = numbered(root, label) if out is None else out
            try:
                part.rename(folder)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
                if out is not None:
                    raise UserError(f"{out} exists; choose another --out, or say --overwrite") from error
                continue  # another run took the number a moment ago
            sync_folder(parent)
            return folder

    try:
        yield part, appear
    finally:
        shutil.rmtree(part, ignore_errors=True)  # (where it has not appeared)


def numbered(root: Path, label: str) -> Path:
    """The next numbered folder's name."""
    taken = [int(m[1]) for p in root.iterdir() if (m := re.match(r"(\d+)-", p.name))]
    return root / f"{max(taken, default=0) + 1:04d}-{label}"


def make(label: str, root: Path = Path("runs")) -> Path:
    """A fresh numbered folder, empty."""
    root.mkdir(parents=True, exist_ok=True)
    while True:
        folder = numbered(root, label)
        try:
            folder.mkdir()
        except FileExistsError:
            continue  # another run took the number a moment ago
        return folder


def _empty(out: Path) -> None:
    """Deletes a run's files but for its configuration; what says that it has finished or begun goes first."""
    for name in ("summary.json", "metrics.csv", "checkpoint/checkpoint.json", *FILES):
        if name != "config.toml":
            (out / name).unlink(missing_ok=True)
    for name in FOLDERS:
        shutil.rmtree(out / name, ignore_errors=True)
    for path in out.iterdir():
        if is_leftover(path) and path.name != ".lock":
            path.unlink()


def alone(folder: Path) -> AbstractContextManager[None]:
    """Holds a run's folder for this process.

    Raises:
        Busy: if another one has it.
        UserError: where parts of it are elsewhere: what is written and deleted in it would be, too.
    """
    for name in FOLDERS:
        if (folder / name).is_symlink():
            raise UserError(f"{folder / name} is a symbolic link, and a run's folder holds its own")
    return locked(folder / ".lock", f"another process is running in {folder}")


def write_text(path: Path, text: str) -> None:
    """Replaces a file whole, or not at all."""
    write_whole(path, text.encode())


def read_cells(path: Path, about: Mapping[str, Any], may_differ: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The cells of an experiment that a json holds, {**about, "cells": [{...}, ...]}; none where there is no file.

    Raises:
        UserError: if the file is damaged or no such json, or holds another experiment's.
    """
    if not path.exists():
        return []
    held = read_json(path)
    cells = held.pop("cells", None)
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise UserError(f"{path} holds no cells of an experiment; choose another --out")
    wanted = json.loads(json.dumps(about))
    other = [k for k in {**wanted, **held} if k not in may_differ and wanted.get(k) != held.get(k)]
    if other:
        what = "; ".join(f"its {k} is {held.get(k)!r}, not {wanted.get(k)!r}" for k in other)
        raise UserError(f"{path} holds another experiment: {what}; choose another --out")
    return cells


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


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a finished run.

    Raises:
        UserError: if the run has not finished, or the file is damaged.
    """
    path = folder / "summary.json"
    if not path.is_file():
        raise UserError(f"{folder} has not finished: it has no summary.json; go on with: hierfl run --resume {folder}")
    return read_json(path, SUMMARY)


def write_metrics(folder: Path, rows: Sequence[dict[str, Any]]) -> None:
    """metrics.csv: one row per evaluation and split. A value that does not apply is empty."""
    if not rows:
        write_text(folder / "metrics.csv", "")
        return
    # (a run that goes on may know more of its later rounds than it did of its first)
    write_rows(folder / "metrics.csv", list(dict.fromkeys(name for row in rows for name in row)), rows)


#: columns of :func:`effects`
EFFECTS = ("effect", "estimate", "standard error")


def effects(folder: Path) -> list[list[str]]:
    """effects.csv as it is shown: name, estimate, and its standard error or why there is none."""
    frame = read_frame(folder / "effects.csv", ("effect", "note"), ("effect", "estimate", "standard_error", "note"))
    rows = []
    for row in frame.itertuples():
        known = row.standard_error == row.standard_error
        rows.append([row.effect, f"{row.estimate:.4g}", f"{row.standard_error:.3g}" if known else row.note])
    return rows


def versions() -> dict[str, str]:
    """Of what a result may depend on."""
    packages = ("hierfl", "torch", "pyro-ppl", "numpy", "arviz", "scikit-learn")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


NUMBERS = (
    "pm_accuracy", "gm_accuracy", "pm_nll", "pm_brier", "pm_ece", "pm_ece_pooled", "pm_accuracy_pooled",
    "pm_draws_accuracy", "pm_draws_nll", "pm_draws_brier", "pm_draws_ece", "gm_nll", "gm_brier", "gm_ece",
    "pm_rmse", "pm_crps", "pm_coverage90", "pm_draws_rmse", "pm_draws_crps", "pm_draws_coverage90", "gm_rmse",
    "gm_crps", "gm_coverage90",
)  # fmt: skip


#: what summary.json must hold
SUMMARY: Schema = {
    **dict.fromkeys(("method", "device"), str), **dict.fromkeys(("clients", "rounds", "seed"), Number(int, 0)),
    **dict.fromkeys(("data", "split", "federation?", "ood?"), AnyOf(str, None)),
    **dict.fromkeys((f"{name}?" for name in NUMBERS), _NUMBERS), "seconds_per_round": _NUMBERS,
    "best": AnyOf({"round": Number(int, 0), "*": _NUMBERS}, None), "versions": {"*": str}, "*": _NUMBERS,
}  # fmt: skip


def numbers(row: dict[str, Any]) -> dict[str, Any]:
    """The numbers of one evaluation under the names of summary.json; what does not apply is null."""
    chosen = {name: row.get(name) for name in NUMBERS}
    chosen["worst10_accuracy"], chosen["accuracy_cv"] = (
        row.get("pm_worst10_accuracy"),
        row.get("pm_accuracy_cv"),
    )
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in chosen.items()}


def summary(run: Run, name: str, report: Mapping[str, float], chains: Mapping[str, Any]) -> dict[str, Any]:
    """summary.json: the last round, the best one by validation, and what it took.

    Args:
        run: what was fitted.
        name: of the method.
        report: numbers of the method's own.
        chains: how well they mixed, worst first; and how surely strange inputs are noticed.
    """
    last, best, options = run.last(), run.best(), run.options
    federation = run.fitted.federation
    return {
        "method": name,
        **{k: federation.about.get(k) for k in ("data", "split", "redraws")},
        "federation": federation.digest(),
        "clients": federation.clients,
        "rounds": options.rounds,
        "participation": options.participation,
        "seed": options.seed,
        **numbers(last),
        "best": {"round": best["round"], **numbers(best)} if best else None,
        **{k: v if math.isfinite(v) else None for k, v in report.items()},
        **chains,
        "dropped_messages": last.get("rejected"),
        "void_rounds": last.get("skipped"),
        "failed_local_steps": last.get("diverged"),
        "seconds_per_round": run.seconds / options.rounds if options.rounds else None,
        "device": options.device,
        "versions": versions(),
    }


#: chains have mixed where R-hat is at most this, and there are at least so many effective draws (Vehtari et al.,
#: Bayesian Analysis 2021); and hardly at all beyond the others
MIXED, DOUBTFUL = (1.01, 400), (1.05, 100)


def told(summary: Mapping[str, Any]) -> list[str]:
    """What a reader of a run has to know of its fit: whether it has arrived, whether its chains have mixed."""
    lines = []
    if "off_maximum" in summary and summary["off_maximum"] is None:
        lines.append(
            "the likelihood is flat or bent upwards here: no standard errors; more --rounds, a smaller model, or "
            "a column centred that is far from zero (a year with a random slope)"
        )
    elif (summary.get("off_maximum") or 0) > 0.05:
        lines.append(f"not at the maximum yet: {summary['off_maximum']:.2f} standard errors to go; more --rounds")
    if summary.get("rhat") is not None:
        rhat, ess = summary["rhat"], summary["ess_bulk"]
        worst = f"chains: R-hat at most {rhat:.3f}, bulk ESS at least {ess:,.0f}"
        good, bad = rhat <= MIXED[0] and ess >= MIXED[1], rhat >= DOUBTFUL[0] or ess < DOUBTFUL[1]
        end = "" if good else "they have not mixed; do not trust their draws" if bad else "longer ones would be safer"
        lines.append(f"{worst}: {end}" if end else worst)
    return lines


#: of more draws than these nobody asks how well their chains mixed: that would take longer than some seconds
MOST_DRAWS = 10_000_000


def mixing(data: Any, clients: pd.DataFrame) -> dict[str, float | None]:
    """The worst R-hat and bulk ESS of all personal numbers; each client's become columns of ``clients``.

    Nothing where there is one chain only (a guide's draws are independent), or draws without end.
    """
    from hierfl.convergence import rhat_and_ess

    nothing: dict[str, float | None] = {"rhat": None, "ess_bulk": None}
    if "posterior" not in data.groups():
        return nothing
    posterior = data.posterior
    if posterior.sizes["chain"] < 2 or posterior.sizes["draw"] < 4:
        return nothing
    arrays = [v.transpose("chain", "draw", "client", ...).values for v in posterior.data_vars.values()]
    if sum(array.size for array in arrays) > MOST_DRAWS:
        return nothing
    found = [rhat_and_ess(array.reshape(*array.shape[:2], -1)) for array in arrays]
    for k, column, worst in ((0, "rhat", "max"), (1, "ess_bulk", "min")):
        each = np.concatenate(
            [values[k].reshape(array.shape[2], -1) for values, array in zip(found, arrays, strict=True)], 1
        )
        clients[column] = getattr(each, worst)(1)
    return {"rhat": float(clients["rhat"].max()), "ess_bulk": float(clients["ess_bulk"].min())}


def strangeness(run: Run, strange: np.ndarray, clients: pd.DataFrame) -> tuple[dict[str, float | None], list[Any]]:
    """How surely strange inputs are told from a client's own, by predictive entropy.

    Columns entropy, ood_entropy and ood_auroc of ``clients`` are at the posterior mean; with ``draws`` in the name they
    are averaged over draws.

    Returns:
        Means over clients for the summary, and the entropies to draw: (own, strange) for each client.
    """
    numbers: dict[str, float | None] = {"ood_auroc": None, "ood_draws_auroc": None}
    pairs: list[Any] = []
    for kind, draws in (("", 0), ("draws_", run.options.draws)):
        if draws and not run.random:
            continue
        own, other = run.entropies(None, draws), run.entropies(strange, draws)
        pairs = list(zip(own, other, strict=True))
        clients[f"{kind}entropy"] = [a.mean() if len(a) else np.nan for a in own]
        clients[f"ood_{kind}entropy"] = [a.mean() for a in other]
        clients[f"ood_{kind}auroc"] = [ood_auroc(a, b) if len(a) else np.nan for a, b in pairs]
        numbers[f"ood_{kind}auroc"] = float(clients[f"ood_{kind}auroc"].mean())
    return numbers, pairs


def write_results(
    folder: Path, run: Run, name: str, ood: str = "", strange: np.ndarray | None = None, observed: bool = True
) -> dict[str, Any]:
    """Everything a finished run leaves; returns the summary.

    A model that has diverged has no posterior to draw: it leaves everything else, and a warning.

    Args:
        folder: the run's.
        run: what was fitted.
        name: of the method.
        ood, strange: name and raw inputs of a data set that the models have not been made for.
        observed: whether posterior.nc holds the training data's responses.
    """
    from hierfl.arviz_io import write
    from hierfl.plots.run import panels
    from hierfl.plots.saving import save_all

    clients, federation = run.clients, run.fitted.federation
    try:
        posterior = run.posterior(observed=observed)
    except NotFinite as error:
        log.warning("no posterior.nc: %s", error)
        posterior = None
    chains: dict[str, Any] = {"rhat": None, "ess_bulk": None} if posterior is None else mixing(posterior, clients)
    chains |= {"ood": ood or None, "ood_auroc": None, "ood_draws_auroc": None}
    pairs: list[Any] = []
    if strange is not None:
        noticed, pairs = strangeness(run, strange, clients)
        chains |= noticed
    write_metrics(folder, run.evaluations)
    write_frame(folder / "clients.csv", clients)
    if len(history := run.history):
        write_frame(folder / "history.csv", history)
    write_frame(folder / "participation.csv", run.participation, "round")
    if posterior is not None:
        write(posterior, folder / "posterior.nc")
    effects, numbers = run.fitted.method.population_summary(run.fitted)
    if effects is not None:
        write_frame(folder / "effects.csv", effects)
    estimates = run.fitted.method.shrinkage_table(run.fitted)
    if estimates is not None:
        write_frame(folder / "estimates.csv", estimates)
    # (there may be validation rows, and no test rows)
    drawn = federation.task == "classification" and "bins" in run.client_metrics[0]
    bins = run.reliability() if drawn else None
    averaged = run.reliability(averaged=True) if drawn and run.random else None
    title = f"{name} on {federation.about['data']}, {federation.clients} clients, {federation.about['split']}"
    frames = {"history": run.history, "participation": run.participation, "estimates": estimates}
    save_all(folder / "figures", panels(run.metrics, clients, bins, pairs, averaged, **frames), title)
    result = summary(run, name, numbers, chains)
    write_text(folder / "summary.json", json.dumps(result, indent=1) + "\n")
    return result
