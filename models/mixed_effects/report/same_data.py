"""Checks that two fits have the same data: likelihoods of different data cannot be compared."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hierfl.data.formula.design import Design
from hierfl.data.formula.parsed import SPREAD
from hierfl.errors import UserError
from hierfl.inference.run.result import Run

#: key of a federation's facts that marks it as one without rows
NO_ROWS = "without rows"
#: what a row has beside its response and effects: what it is called, and what it is where a model has none
EXTRA_COLUMNS: Mapping[str, tuple[str, float]] = {
    "weight": ("weights", 1.0), "offset": ("offsets", 0.0), "trials": ("trials", 1.0), "event": ("events", 1.0),
    "known": ("known standard errors", 0.0), "precision": ("precision weights", 1.0),
}  # fmt: skip

#: relative differences of two columns that are the same
ROUNDING = 1e-9


def check_same_data(first: Run, other: Run) -> None:
    """Refuses to compare fits of different data.

    Raises:
        UserError: in one line that says what differs: rows, clients, the response, weights and the like.
    """
    if difference := _difference(first, other):
        raise UserError(f"the models are of different {difference}: their likelihoods cannot be compared")


def check_same_columns(this: Run, other: Run) -> None:
    """Refuses two fits in which one name represents different columns: then equal names do not make models nested.

    Args:
        one, other: fits of the same data.

    Raises:
        UserError: for an effect of two columns, such as I((x + 3) * n) and I(x + 3 * n), both called I(x + 3 * n).
    """
    columns = [_effects(run) for run in (this, other)]
    for key in columns[0].keys() & columns[1].keys():
        first, second = (_training(run, effects[key]) for run, effects in zip((this, other), columns, strict=True))
        if not torch.allclose(first, second, rtol=ROUNDING, atol=0.0):
            raise UserError(f"the models have different effects of one name, {key[1]!r}: no names say which is nested")


def _effects(run: Run) -> dict[tuple[str, str], Tensor]:
    """Columns of rows, (N,), by level ("" of fixed effects) and name."""
    design = _design(run)
    names = [("", name) for name in design.fixed]
    levels = {**design.groupings, **design.own}.items()
    # A client's effect on its own residuals has no column.
    names += [(level, name) for level, grouping in levels for name in grouping.names if name != SPREAD]
    return dict(zip(names, run.fitted.federation.x.unbind(1), strict=False))


def _difference(this: Run, other: Run) -> str:
    """What differs; empty where nothing does."""
    runs = this, other
    first, second = (run.fitted.federation for run in runs)
    if NO_ROWS in first.about or NO_ROWS in second.about:
        raise UserError(
            "compare needs the rows that were fitted: load_mixed_model(folder, df=table) has them, and of a run's "
            "folder load_run(folder, rows=True)"
        )
    families, labels = ([getattr(_design(run), name) for run in runs] for name in ("family", "labels"))
    if families[0] != families[1]:
        return f"families, {families[0]} and {families[1]}"
    rows = [sum(run.fitted.federation.sizes()) for run in runs]
    if rows[0] != rows[1]:
        return f"rows, {rows[0]:,} and {rows[1]:,}"
    if list(first.ids) != list(second.ids):
        return "clients"
    if list(first.sizes()) != list(second.sizes()):
        return "rows: a client has more in one than in the other"
    if labels[0] != labels[1] or not torch.equal(*(_training(run, run.fitted.federation.y) for run in runs)):
        readers = [run.fitted.federation.about["reader"] for run in runs]
        clients = [reader.places.levels.client for reader in readers]
        names = [reader.formula.partition("~")[0].strip() for reader in readers]
        if names[0] != names[1]:
            return f"responses, {names[0]} and {names[1]}"
        differ = clients[0] != clients[1]
        return f"clients, {clients[0]} and {clients[1]}" if differ else f"rows, or of other values of {names[0]}"
    for name, (words, usual) in EXTRA_COLUMNS.items():
        values = [_beside(run, name) for run in runs]
        filled = [first.y.new_full(first.y.shape, usual) if column is None else column for column in values]
        if not torch.equal(*(_training(run, column) for run, column in zip(runs, filled, strict=True))):
            return f"{words}, of which one has none" if any(column is None for column in values) else words
    return ""


def _design(run: Run) -> Design:
    network = run.fitted.method.network
    assert isinstance(network, Design)
    return network


def _training(run: Run, column: Tensor) -> Tensor:
    """The entries of a column for the training rows, client after client."""
    return column[torch.cat(list(run.fitted.federation.train))]


def _beside(run: Run, name: str) -> Tensor | None:
    """One of the columns that rows have beside effects, (N,); None where there is none."""
    extras = _design(run).extras
    return run.fitted.federation.x[:, extras.index(name) - len(extras)] if name in extras else None
