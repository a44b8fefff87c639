"""Fits on disk: numbers in a safetensors file, everything else as json, nothing pickled.

A folder holds what the server and the clients keep, and how the fit was asked for; not the rows. Anyone who loads a fit
with the table that was fitted has all of it again, its fingerprint compared; without, what needs no row
(:mod:`.rowless`). The files are those of a checkpoint (:mod:`hierfl.inference.run.checkpoint`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hierfl.data.federation import Federation
from hierfl.errors import UserError
from hierfl.inference.evaluation.fitted import Fitted
from hierfl.inference.run import checkpoint
from hierfl.inference.run.result import Run
from hierfl.inference.run.watched import Watched
from hierfl.inference.server.robust.standing import StandsOut
from hierfl.inference.state import State
from hierfl.schema import check

from ..method import MixedEffects
from ..report.fitting import options_of
from .rowless import effects_of, federation_of, record_of
from .rows import KEPT

if TYPE_CHECKING:
    import pandas as pd

#: what the json holds beside a checkpoint's
RECORD = {"formula": str, "how": dict, "data": str, "clients": list, "seconds": float, "random": bool, "columns": dict}
#: what a fit has of its clients and its server
STATES = ("shared", "personal", "copies", "initial")
#: tensors of :class:`~hierfl.inference.run.watched.Watched`
WATCHED_TENSORS = ("measured", "beside", "without", "errors")


def save(run: Run, formula: str, how: Mapping[str, Any], df: pd.DataFrame, folder: Path) -> None:
    """See :meth:`.again.MadeAgain.save`."""
    state: State = {f"{part}/{k}": v for part in STATES for k, v in getattr(run.fitted, part).items()}
    if run.status is not None:
        state["status"] = torch.as_tensor(np.asarray(run.status).astype(np.int64))
    state |= effects_of(run)
    entries: dict[str, Any] = {
        "round": run.rounds, "formula": formula, "how": dict(how), "data": run.fitted.federation.digest(),
        "clients": list(run.ids), "seconds": float(run.seconds), "random": bool(run.random),
        "columns": _columns(run.fitted.method, run.fitted.federation), "rowless": record_of(run, df),
    }  # fmt: skip
    if (watched := run.watched) is not None:
        arrays = {name: getattr(watched, name) for name in WATCHED_TENSORS}
        state |= {f"watched/{name}": torch.as_tensor(array) for name, array in arrays.items() if array is not None}
        rest = {f.name: list(getattr(watched, f.name)) for f in fields(watched) if f.name not in WATCHED_TENSORS}
        entries["watched"] = {**rest, "named": [asdict(row) for row in watched.named]}
    checkpoint.save(folder, state, entries)


def read(folder: Path) -> tuple[State, dict[str, Any]]:
    """What was saved.

    Raises:
        UserError: for a folder that holds no fit, or one that is damaged.
    """
    state, record = checkpoint.load(folder)
    check(record, {**checkpoint.RECORD, **RECORD}, folder / "checkpoint.json")
    return state, record


def _columns(method: Any, federation: Federation) -> dict[str, list[str]]:
    """What the columns are called, and the levels that they are of: columns alone do not know a level's name."""
    design, reader = method.network, federation.about["reader"]
    levels = {
        f"levels of {name}": sorted(map(str, levels_of_column))
        for name, levels_of_column in reader.types.levels.items()
    }
    random = {level: [str(name) for name in grouping.names] for level, grouping in design.groupings.items()}
    return {"fixed": list(design.fixed), "response": [str(label) for label in design.labels], **random, **levels}


def restored(method: MixedEffects, federation: Federation, state: State, record: Mapping[str, Any]) -> Run:
    """The fit, of the rows that it was of.

    Raises:
        UserError: for other rows.
    """
    same = federation.digest() == record["data"] and list(federation.ids) == record["clients"]
    if not same or _columns(method, federation) != record["columns"]:
        raise UserError("the table is not the one that was fitted: load takes the same rows, in the same order")
    return _run(method, federation, state, record)


def without_rows(method: MixedEffects, state: State, record: Mapping[str, Any]) -> Run:
    """The fit, of no rows."""
    effects = {k.partition("/")[2]: v for k, v in state.items() if k.startswith(f"{KEPT}/")}
    return _run(method, federation_of(record["rowless"], record["clients"], effects), state, record)


def _run(method: MixedEffects, federation: Federation, state: State, record: Mapping[str, Any]) -> Run:
    parts = [{k.partition("/")[2]: v for k, v in state.items() if k.startswith(f"{part}/")} for part in STATES]
    how = record["how"]
    options = options_of(method, how["seed"], "cpu", how["rounds"])
    watched = None
    if (kept := record.get("watched")) is not None:
        arrays = {name: state[f"watched/{name}"].numpy() for name in WATCHED_TENSORS if f"watched/{name}" in state}
        watched = Watched(**{**kept, "named": [StandsOut(**row) for row in kept["named"]], **arrays})
    shared, personal, copies, initial = parts
    fitted = Fitted(method, federation.to("cpu", options.dtype), shared, personal, copies, initial, how["seed"])
    status = state["status"].numpy() if "status" in state else None
    return Run(
        fitted, federation.ids, options, [], record["seconds"], record["random"], status=status, watch=watched
    )  # fmt: skip
