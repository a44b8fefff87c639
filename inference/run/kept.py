"""A run on disk, without its data: numbers in a safetensors file, all else as json, nothing pickled.

What is kept is what a fit has reached and what it has been through. The method is not: anyone who reads a run hands one
over, made as the fit's was. The files are those of a checkpoint (:mod:`.checkpoint`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hierfl.data import without_rows
from hierfl.data.federation import Federation
from hierfl.errors import UserError
from hierfl.schema import AnyOf, Number, Schema, check

from ..calibration.calibrate import Calibration
from ..evaluation.fitted import Fitted
from ..method.base import Method
from ..method.of_options import of_options
from ..options import Options
from ..server.robust.standing import StandsOut
from ..state import State
from . import checkpoint
from .coverage import Coverage
from .journal import EVALUATION
from .loaded import LoadedRun
from .result import Run
from .watched import Watched

#: what a fit has of its clients and its server
STATES = ("shared", "personal", "copies", "initial")
#: tensors of :class:`.watched.Watched`
WATCHED_TENSORS = ("measured", "beside", "without", "errors")
#: what the json holds beside a checkpoint's
RECORD: Schema = {
    "federation": without_rows.FEDERATION, "options": dict, "tensors": {"*": Number(int, 0)}, "seed": Number(int, 0),
    "seconds": Number(float, 0), "random": bool,
    "evaluations": [EVALUATION],
    "summaries": [Number(int, 0)], "held_out": [Number(int, 0)], "tested": AnyOf(Number(int, 0), None),
    "calibration": AnyOf(dict, None), "coverage": AnyOf(dict, None), "watched": AnyOf(dict, None),
}  # fmt: skip


def write(folder: Path, run: Run, more: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Writes a run.

    Args:
        folder: made if missing.
        run: of which nothing but the method and rows of data is left out.
        more: json values that say how the method is made.
        tensors: likewise, {name: tensor}.
    """
    federation, scales = without_rows.written(run.fitted.federation)
    state: State = {f"{part}/{k}": v for part in STATES for k, v in getattr(run.fitted, part).items()}
    state |= {f"scale/{k}": v for k, v in scales.items()} | {f"method/{k}": v for k, v in tensors.items()}
    for name in ("summaries", "held_out"):
        for index, (_, values) in enumerate(getattr(run, name)):
            parts = values.items() if isinstance(values, Mapping) else [("", values)]
            state |= {f"{name}/{index}/{k}": v for k, v in parts}
    for index, metrics in enumerate(run.tested or ()):
        state |= {f"tested/{index}/{k}": torch.as_tensor(v) for k, v in metrics.items()}
    if run.status is not None:
        state["status"] = torch.as_tensor(run.status)
    if run.calibration is not None:
        state |= {f"calibration/{k}": torch.as_tensor(v) for k, v in run.calibration.clients.items()}
    if run.watched is not None:
        arrays = {name: getattr(run.watched, name) for name in WATCHED_TENSORS}
        state |= {f"watched/{name}": torch.as_tensor(array) for name, array in arrays.items() if array is not None}
    record = {
        **more, "round": run.rounds, "federation": federation, "options": _plain_options(run.options),
        "tensors": {name: index for index, name in enumerate(state)},
        "seed": run.fitted.seed, "seconds": float(run.seconds), "random": bool(run.random),
        "evaluations": run.evaluations, "summaries": [number for number, _ in run.summaries],
        "held_out": [number for number, _ in run.held_out],
        "tested": None if run.tested is None else len(run.tested),
        "calibration": None if run.calibration is None else _fields(run.calibration, ("clients",)),
        "coverage": None if run.coverage is None else _fields(run.coverage),
        "watched": None if run.watched is None else _watched_record(run.watched),
    }  # fmt: skip
    checkpoint.save(folder, state, record)


def _plain_options(options: Options) -> dict[str, Any]:
    values = {f.name: getattr(options, f.name) for f in fields(options)}
    return {k: without_rows.name_of(v) if isinstance(v, torch.dtype) else v for k, v in values.items()}


def _fields(instance: Any, apart: tuple[str, ...] = ()) -> dict[str, Any]:
    return {f.name: getattr(instance, f.name) for f in fields(instance) if f.name not in apart}


def _watched_record(watched: Watched) -> dict[str, Any]:
    rest = {name: list(value) for name, value in _fields(watched, WATCHED_TENSORS).items()}
    return {**rest, "named": [asdict(row) for row in watched.named]}


def read(folder: Path) -> tuple[State, dict[str, Any]]:
    """What :func:`write` wrote.

    Raises:
        UserError: for a folder that holds no run, or a damaged one.
    """
    state, record = checkpoint.load(folder)
    check(record, RECORD, folder / "checkpoint.json")
    places = record["tensors"]  # a safetensors file keeps no order
    if places.keys() != state.keys():
        raise UserError(f"{folder} is damaged: its tensors are not those that were written")
    return {name: state[name] for name in sorted(state, key=places.__getitem__)}, record


def under(state: Mapping[str, Tensor], prefix: str) -> State:
    """The tensors whose names begin so, without that."""
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def options_of(record: Mapping[str, Any]) -> Options:
    """How the fit was run, on the CPU.

    Raises:
        UserError: for options that this version does not have.
    """
    names = {f.name for f in fields(Options)}
    if strange := sorted(record["options"].keys() - names):
        raise UserError(f"the run was written by another version of hierfl: it has the option {strange[0]!r}")
    on_cpu = {"device": "cpu", "client_state": "device", "cuda_graphs": False}
    own = {"dtype": without_rows.type_of(record["options"]["dtype"]), "splits": tuple(record["options"]["splits"])}
    return Options(**{**record["options"], **on_cpu, **own})


def federation_of(state: State, record: Mapping[str, Any]) -> Federation:
    """The data that were fitted, without rows."""
    return without_rows.read(record["federation"], under(state, "scale/"))


def run_of(
    method: Method, state: State, record: Mapping[str, Any], federation: Federation, folder: Path | None = None,
    *, as_fitted: bool = False,
) -> Run:  # fmt: skip
    """The run that was written.

    Args:
        method: made as the fit's was.
        state, record: what was written.
        federation: of :func:`federation_of`, or the data that were fitted.
        folder: of the run, where the federation is without rows.
        as_fitted: whether the method is the one that was fitted, to which options have nothing to add.

    Raises:
        UserError: for a method that is another than the fit's.
    """
    options = options_of(record)
    if not as_fitted:
        method = of_options(options, method, federation)[0]
    shared, personal, copies, initial = (under(state, f"{part}/") for part in STATES)
    fitted = Fitted(method, federation, shared, personal, copies, initial, record["seed"])
    many, status = record["tested"], state.get("status")
    tested = None if many is None else [_arrays(under(state, f"tested/{k}/")) for k in range(many)]
    parts: tuple[Any, ...] = (
        fitted, list(record["federation"]["ids"]), options, [dict(row) for row in record["evaluations"]],
        record["seconds"], record["random"], tested,
        [(number, under(state, f"summaries/{k}/")) for k, number in enumerate(record["summaries"])],
        None if status is None else status.numpy(), _calibration(state, record),
        [(number, state[f"held_out/{k}/"]) for k, number in enumerate(record["held_out"])],
        None if record["coverage"] is None else Coverage(**record["coverage"]), _watched(state, record),
    )  # fmt: skip
    return Run(*parts) if folder is None else LoadedRun(*(*parts, folder))


def _arrays(values: State) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in values.items()}


def _calibration(state: State, record: Mapping[str, Any]) -> Calibration | None:
    if (kept := record["calibration"]) is None:
        return None
    powers = None if kept["powers"] is None else tuple(kept["powers"])
    return Calibration(**{**kept, "powers": powers, "clients": _arrays(under(state, "calibration/"))})


def _watched(state: State, record: Mapping[str, Any]) -> Watched | None:
    if (kept := record["watched"]) is None:
        return None
    arrays = _arrays(under(state, "watched/"))
    return Watched(**{**kept, "named": [StandsOut(**row) for row in kept["named"]], **arrays})
