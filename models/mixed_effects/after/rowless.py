"""Fits that were loaded without their rows: what they answer, and what they say needs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch

from hierfl.data.federation import Federation
from hierfl.data.formula.correlation import Correlation
from hierfl.data.formula.design import Design
from hierfl.data.formula.grouping import Grouping
from hierfl.data.formula.rowless import read, written
from hierfl.data.formula.units import Units
from hierfl.data.outline import outline_of
from hierfl.errors import UserError
from hierfl.inference.run.result import Run
from hierfl.inference.state import State

from ..report.same_data import NO_ROWS
from .rows import KEPT, effects_at_estimates

#: of a design, groups of other levels than the clients, and columns of formulas
OTHER_GROUPS = ("inner", "outer", "dispersion", "zero_inflation")
#: of a design, what is written as it is
PLAIN = (
    "fixed", "random", "family", "extras", "levels", "centre", "scale", "blocks", "labels", "fixed_correlation",
    "histogram",
)  # fmt: skip
#: of a design, what is written in a way of its own
CONVERTED_ENTRIES = ("fixed_units", "random_units", "further", "correlation", "above")
#: of a federation, what notes are of
NOTE_ENTRIES = ("left_out", "codes", "dropped")


def record_of(run: Run, df: Any = None) -> dict[str, Any]:
    """What a fit is loaded by without its table: no number of a single row is in it."""
    federation, design = run.fitted.federation, run.fitted.method.network
    assert isinstance(design, Design)
    units = {name: asdict(getattr(design, f"{name}_units")) for name in ("fixed", "random")}
    others = {name: None if (grouping := getattr(design, name)) is None else asdict(grouping) for name in OTHER_GROUPS}
    return {
        "design": {
            **{name: getattr(design, name) for name in PLAIN},
            **others,
            "units": units,
            "further": [asdict(grouping) for grouping in design.further],
            "above": [asdict(grouping) for grouping in design.above],
            "correlation": None if design.correlation is None else asdict(design.correlation),
        },
        "sizes": [int(n) for n in federation.sizes()],
        "about": {name: federation.about[name] for name in NOTE_ENTRIES if name in federation.about},
        "reader": reader_record(federation, df),
    }


def reader_record(federation: Federation, df: Any = None) -> dict[str, Any] | None:
    """How columns are read from other tables; None where that needs the rows, or the table is not known."""
    if df is None:
        record: dict[str, Any] | None = federation.about.get("reader_record")
        return record
    reader = federation.about["reader"]
    return written(reader, df, reader.places.levels.client)


def effects_of(run: Run) -> State:
    """Clients' effects given the estimates, which residuals of other tables are by."""
    return {f"{KEPT}/{name}": value for name, value in effects_at_estimates(run.fitted).items()}


def federation_of(record: Mapping[str, Any], clients: list[str], effects: State) -> Federation:
    """Clients by name and number of rows, and no row."""
    facts = {**record["about"], KEPT: effects, NO_ROWS: True}
    if record["reader"] is not None:
        facts["reader"] = read(record["reader"])
    width = design_of(record).width
    index = [torch.zeros(1, dtype=torch.long).expand(n) for n in record["sizes"]]
    nothing = [torch.zeros(0, dtype=torch.long) for _ in clients]
    outline = outline_of((width,), "regression", dtype=torch.float64, facts=facts)
    return replace(outline, ids=clients, train=index, validation=nothing, test=nothing, about=About(facts))


class About(dict[str, Any]):
    """What is known of a fit without rows; a reader only where sums and levels make its columns."""

    def __missing__(self, name: str) -> Any:
        if name != "reader":
            raise KeyError(name)
        raise UserError(
            "this formula's columns, such as a spline's, are not made without the rows that were fitted: "
            "load_mixed_model(folder, df=table) makes them, and of a run's folder load_run(folder, rows=True)"
        )


def design_of(record: Mapping[str, Any]) -> Design:
    """The design that was written."""
    entries = record["design"]
    units = {f"{name}_units": _units(entry) for name, entry in entries["units"].items()}
    others = {name: None if entries[name] is None else _grouping(entries[name]) for name in OTHER_GROUPS}
    lists = {name: [_grouping(entry) for entry in entries.get(name, ())] for name in ("further", "above")}
    correlation = None if entries["correlation"] is None else Correlation(**entries["correlation"])
    given: dict[str, Any] = {name: entries[name] for name in PLAIN} | units | others
    given |= {"fixed_correlation": None, "correlation": correlation, **lists}
    made = Design.from_columns(**given)
    return replace(made, fixed_correlation=tuple(map(tuple, entries["fixed_correlation"])))


def _units(entries: Mapping[str, Any]) -> Units:
    return Units(tuple(entries["centre"]), tuple(entries["scale"]))


def _grouping(entries: Mapping[str, Any]) -> Grouping:
    lists = {name: tuple(entries[name]) for name in ("names", "blocks", "groups")}
    return Grouping(**{**entries, **lists, "units": _units(entries["units"])})


def needs_rows(what: str) -> UserError:
    """What is said where rows are needed that are not there."""
    return UserError(
        f"{what} needs the rows that were fitted, and this fit has none: load_mixed_model(folder, df=table) has, and "
        "of a run's folder load_run(folder, rows=True)"
    )
