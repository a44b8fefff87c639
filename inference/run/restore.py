"""Whether a checkpoint is one of this fit."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from hierfl.errors import UserError
from hierfl.schema import check

from ..method.base import Method
from ..method.initial import GIVEN_WEIGHTS_KEY, given_weights
from ..options import NEWER, Options
from ..state import State, StateForm, form_of_state
from .checkpoint import load
from .journal import RECORD

#: what grows while a fit runs: a fresh one has none of it, or less
GROWS = ("server/rule_state/", "journal/")


def identity_of(method: Method, options: Options) -> dict[str, Any]:
    """What must be the same for a resumed fit to be the one that was begun."""
    newer = {f.name: f.default for f in fields(method.settings) if f.metadata.get("newer")}
    settings = {k: repr(v) for k, v in vars(method.settings).items() if k not in newer or v != newer[k]}
    name, weights = type(method).__qualname__, given_weights(method.network)
    return {"method": name, "settings": settings, **options.identity, **weights}


def numbers_of(options: Options) -> str:
    """The number format in which a fit is computed."""
    return str(options.dtype) + ("" if options.precision == "full" else f", {options.precision}")


def load_checked(folder: Path, form: StateForm, fresh: dict[str, Any], rounds: int) -> tuple[State, dict[str, Any]]:
    """Reads a checkpoint of the fit that is to go on.

    Args:
        folder: where it is.
        form: of its tensors in a fit that has not begun.
        fresh: what such a fit's record says.
        rounds: of the fit.

    Returns:
        As :func:`~hierfl.inference.run.checkpoint.load`.

    Raises:
        UserError: if there is none, or it is another fit's.
    """
    tensors, record = load(folder)
    check(record, RECORD, folder / "checkpoint.json")
    dtype, wanted = record["dtype"], fresh["dtype"]
    if dtype != wanted:
        raise UserError(f"the checkpoint in {folder} holds {dtype}, not {wanted}")
    kept = {k: v for k, v in form_of_state(tensors).items() if not k.startswith(GROWS)}
    if kept != {k: v for k, v in form.items() if not k.startswith(GROWS)}:
        raise UserError(f"the checkpoint in {folder} belongs to another method, network or federation")
    if record["federation"] != fresh["federation"]:
        raise UserError(f"the checkpoint in {folder} was made on other data or another split")
    earlier, two = ({**NEWER, **part["fit"]} for part in (record, fresh))
    other = [k for k in {**two, **earlier} if earlier.get(k) != two.get(k)]
    if GIVEN_WEIGHTS_KEY in other:
        raise UserError(
            f"the checkpoint in {folder} was begun with other weights of the network: give it the same module, or "
            "Network(module, weights='drawn') where they were drawn"
        )
    if other:
        raise UserError(f"the checkpoint in {folder} was begun with a different {', '.join(other)}")
    if record["round"] > rounds:
        raise UserError(f"the checkpoint in {folder} is at round {record['round']} of {rounds}")
    return tensors, record
