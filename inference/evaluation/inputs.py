"""What a user gives to predict for, as the pool has it, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.federation import Federation
from hierfl.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

#: raw inputs, (n, *event), or a table's rows
Inputs: TypeAlias = "Tensor | np.ndarray | pd.DataFrame"


def raw_inputs(federation: Federation, x: Inputs) -> Tensor:
    """Inputs as the pool has them, (n, *event), checked."""
    columns, reader = federation.about.get("columns"), federation.about.get("reader")
    if not isinstance(x, Tensor | np.ndarray) and not hasattr(x, "columns"):
        x = np.asarray(x)  # (lists)
    if reader is not None and not isinstance(x, Tensor | np.ndarray):
        x = reader(x)  # the original table's columns, by the formula
    elif columns and not isinstance(x, Tensor | np.ndarray):
        lacking = [c for c in columns if c not in x.columns]
        if lacking:
            raise UserError(f"the table lacks column {lacking[0]!r}")
        x = x[columns].to_numpy()
    raw = x.to(federation.device) if isinstance(x, Tensor) else torch.tensor(np.asarray(x), device=federation.device)
    if not len(raw):
        raise UserError("there are no inputs to predict for")
    if raw.is_floating_point() and not raw.isfinite().all():
        raise UserError("inputs hold values that are NaN or infinite")
    if raw.shape[1:] != federation.event_shape:
        raise UserError(
            f"inputs have shape {tuple(raw.shape)}, expected (n, {', '.join(map(str, federation.event_shape))})"
        )
    return raw


def new_examples(federation: Federation, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Examples of a new client as the pool has them, checked."""
    inputs = raw_inputs(federation, x)
    targets = y.to(federation.device) if isinstance(y, Tensor) else torch.tensor(np.asarray(y)).to(federation.device)
    if targets.shape != (len(inputs),):
        raise UserError(f"{len(inputs)} inputs need as many targets, not {tuple(targets.shape)}")
    if federation.task == "classification" and (
        targets.is_floating_point() or not bool(((targets >= 0) & (targets < federation.classes)).all())
    ):
        raise UserError(f"labels of a new client are whole numbers from 0 to {federation.classes - 1}")
    if not bool(targets.isfinite().all()):
        raise UserError("targets hold values that are NaN or infinite")
    return inputs, targets.to(federation.y.dtype)


def unlabelled(federation: Federation, x: Inputs) -> Batch:
    """Inputs as a batch of one client, with targets of zero."""
    raw = raw_inputs(federation, x)
    y = federation.targets(torch.zeros((1, len(raw)), dtype=federation.y.dtype, device=federation.device))
    return Batch(
        federation.inputs(raw)[None],
        y,
        None,
        torch.ones(1, dtype=federation.dtype, device=federation.device),
    )


def client_row(federation: Federation, client: int | str) -> int:
    """A client by its name; by its place only where no name is a number."""
    ids = list(federation.ids)
    if str(client) in ids:
        return ids.index(str(client))
    if isinstance(client, int) and 0 <= client < len(ids) and not any(name.isdigit() for name in ids):
        return client
    raise UserError(f"no client {client!r}; there are {', '.join(ids[:5])}{', ...' * (len(ids) > 5)}")
