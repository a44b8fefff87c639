"""Shapes of a model's sites, and whether it mixes clients.

The model of a formula is hierfl's own, and mixes none: its shapes are looked at once in a process for each form of its
values.
"""

from __future__ import annotations

from collections.abc import Sequence

from hierfl.data.federation import Federation
from hierfl.data.formula.design import Design

from ..clients.checks import check_rows, check_shapes
from ..evaluation.response import response
from ..method.base import Method
from ..state import State, form_of_state
from .check import is_formula

_LOOKED_AT: set[tuple[object, ...]] = set()


def check_clients(method: Method, federation: Federation, shared: State, personal: State, rows: Sequence[str]) -> None:
    """See :mod:`hierfl.inference.clients.checks`; and whether one site is predicted.

    Args:
        method: whose model and guide.
        federation: for the shape of the data.
        shared: {name: (*shape)}.
        personal: one row, {name: (*shape)}.
        rows: shared values that clients train or differentiate by.

    Raises:
        UserError: naming the site, or for clients that mix.
    """
    form = _form(method, federation, shared, personal) if is_formula(method) else ()
    if not form or form not in _LOOKED_AT:
        response(check_shapes(method, federation, shared, personal, rows))
    if form:
        _LOOKED_AT.add(form)
    else:
        check_rows(method, federation, shared, personal)


def _form(method: Method, federation: Federation, shared: State, personal: State) -> tuple[object, ...]:
    """What the shapes of a formula's sites follow from."""
    design = method.network
    assert isinstance(design, Design)
    columns = design.family, design.fixed, design.random, design.extras, design.levels, design.blocks
    forms = [tuple(sorted(form_of_state(values).items())) for values in (shared, personal)]
    form = str(federation.device), str(federation.dtype)
    return type(method), repr(method.settings), repr(columns), *form, *forms
