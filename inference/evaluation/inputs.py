"""What a user gives to predict for, as the pool has it, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.category_columns import check_truths, encoded_columns
from hierfl.data.federation import Federation
from hierfl.data.frames import is_table
from hierfl.data.input_kinds import as_ids, as_pixels, check_scale
from hierfl.data.labels import known_labels, one_column
from hierfl.data.raw_values import number_array, number_tensor, precision_of
from hierfl.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

#: raw inputs, (n, *event), or a table's rows
Inputs: TypeAlias = "Tensor | np.ndarray | pd.DataFrame"


def raw_inputs(federation: Federation, x: Inputs) -> Tensor:
    """Inputs as the pool has them, (n, *event), checked as the training's were.

    The same numbers are the same inputs in any type: pixels may be uint8, other whole numbers, floats up to 255, or
    floats up to 1.

    Raises:
        UserError: for inputs that are no numbers, of another shape or on another scale, with the remedy.
    """
    values, what = _columns(federation, x), "x"
    raw = _in_layout(number_tensor(values, what).to(federation.device), federation)
    if raw.dim() and not len(raw):
        raise UserError("there are no inputs to predict for")
    if raw.dim() == 0 or raw.shape[1:] != federation.event_shape:
        hint = " (one input x is x[None])" if raw.shape == federation.event_shape else ""
        raise UserError(
            f"inputs have shape {tuple(raw.shape)}, expected (n, {', '.join(map(str, federation.event_shape))}){hint}"
        )
    if raw.is_floating_point() and not raw.isfinite().all():
        raise UserError("inputs hold values that are NaN or infinite")
    if federation.x.dtype == torch.int64:
        if raw.dtype == torch.bool:
            check_scale(raw, *federation.extent)
        return as_ids(raw, what)
    if federation.x.dtype == torch.uint8:
        return as_pixels(raw, what, precision_of(values))
    check_scale(raw, *federation.extent)
    return raw if raw.is_floating_point() else raw.to(federation.x.dtype)


def _columns(federation: Federation, x: Inputs) -> Any:
    """A table's columns as the federation reads them; anything else as it is."""
    columns, reader = federation.about.get("columns"), federation.about.get("reader")
    if isinstance(x, Tensor | np.ndarray):
        return x
    if reader is not None:
        return reader(x if hasattr(x, "columns") else np.asarray(x))  # the original table's columns, by the formula
    if is_table(x):
        levels = federation.about.get("categories") or {}
        check_truths(x, federation.about.get("truths") or [])
        return encoded_columns(x, list(x.columns) if columns is None else columns, levels, "the table")
    return x


def _in_layout(raw: Tensor, federation: Federation) -> Tensor:
    """Pictures with channels last, or without channels, as a pool of uint8 pictures has them."""
    event = federation.event_shape
    if federation.x.dtype != torch.uint8 or raw.shape[1:] == event or len(event) != 3:
        return raw
    if event[0] == 1 and raw.shape[1:] == event[1:]:
        return raw[:, None]
    return raw.movedim(-1, 1) if raw.dim() == 4 and raw.movedim(-1, 1).shape[1:] == event else raw


def new_examples(federation: Federation, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Examples of a new client as the pool has them, checked.

    Args:
        federation: of the other clients.
        x: raw inputs, (m, *event).
        y: targets, (m,) or (m, 1): labels as they were given for the others, or responses.
    """
    inputs, what = raw_inputs(federation, x), "the y of given="
    if federation.task == "classification":
        targets = known_labels(y, federation.label_names, what)
    else:
        targets = number_array(one_column(y, what), what)
    if targets.shape != (len(inputs),):
        raise UserError(f"{len(inputs)} inputs need as many targets, not {targets.shape}")
    _as_model_sees(federation, inputs)
    if not np.isfinite(targets).all():
        raise UserError("targets hold values that are NaN or infinite")
    return inputs, torch.from_numpy(targets).to(federation.device, federation.y.dtype)


def unlabelled(federation: Federation, x: Inputs) -> Batch:
    """Inputs as a batch of one client, with targets of zero."""
    raw = raw_inputs(federation, x)
    y = federation.targets(torch.zeros((1, len(raw)), dtype=federation.y.dtype, device=federation.device))
    return Batch(
        _as_model_sees(federation, raw)[None],
        y,
        None,
        torch.ones(1, dtype=federation.dtype, device=federation.device),
    )


def _as_model_sees(federation: Federation, raw: Tensor) -> Tensor:
    """Inputs as a batch has them.

    Raises:
        UserError: for numbers beyond the type in which the fit computes.
    """
    inputs = federation.inputs(raw)
    if not bool(inputs.isfinite().all()):
        kind = str(federation.dtype).removeprefix("torch.")
        largest = float(raw.double().abs().max())
        raise UserError(f"inputs reach {largest:.3g}, beyond the numbers of {kind}: are they in another unit?")
    return inputs


def client_row(federation: Federation, client: int | str) -> int:
    """A client by its name; by its position only where no name is a number."""
    ids = list(federation.ids)
    some = f"there are {', '.join(ids[:5])}{', ...' * (len(ids) > 5)}"
    if isinstance(client, bool) or not isinstance(client, str | int | np.integer):
        kind = type(client).__name__
        raise UserError(f"client is the name of one, as in predict(x, client), not {kind}; {some}")
    if str(client) in ids:
        return ids.index(str(client))
    if not isinstance(client, str) and 0 <= client < len(ids) and not any(name.isdigit() for name in ids):
        return int(client)
    raise UserError(f"no client {client!r}; {some}; predict_new_client(x) is for one that was never seen")
