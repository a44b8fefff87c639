"""Support: the number of sites at which a part of the data occurs.

A sum to which fewer than three sites add shows what one of them has.

Parts are levels, fixed and random columns, groups of sites, and classes. They are counted before any other sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...errors import UserError
from .array_data import ArrayData, ArraySite
from .column_data import ColumnData, ColumnSite
from .formula_data import FormulaData, FormulaSite
from .model_data import ModelData, ModelSite
from .study_reader import StudyReader
from .sums import Moments

if TYPE_CHECKING:
    import pandas as pd

    from .dictionary import Column
    from .study_data import SiteData, StudyData

#: name of the sums
SUPPORT = "support"
#: sites at which a part has to occur
MIN_SITES_OF_PART = 3
#: a mean that no number has: columns are looked at before means are known, and none is zero by chance
PROBE_MEAN = 0.7390851332151607


def part_names(data: StudyData, *, classes: bool) -> list[str]:
    """What is counted, as people call it.

    Args:
        data: what the sites' files are.
        classes: whether labels are counted: for a method whose messages are sums over each class.
    """
    if isinstance(data, FormulaData):
        reader, study = _reader(data), data.formula
        names = _level_names(study.columns, sorted(study.terms.predictors))
        names += [name for name in (*reader.columns, *reader.random) if name not in names]
        names += _level_names(study.columns, sorted(study.terms.response or ())) if study.ordinal_levels else []
        return list(dict.fromkeys([*names, *(f"{study.levels.outer}={home}" for home in study.places.outer)]))
    if isinstance(data, ColumnData):
        labels = [f"{data.y}={label}" for label in data.labels]
        return (
            list(dict.fromkeys([*data.reader.names, *_level_names(data.dictionary.columns, data.x)])) + labels * classes
        )
    if isinstance(data, ModelData):
        columns = data.dictionary.columns
        numbers = [name for name in data.columns if columns[name].kind != "category"]
        return list(dict.fromkeys([*numbers, *_level_names(columns, data.columns)]))
    assert isinstance(data, ArrayData)
    return [f"class {k}" for k in range(data.classes)] * classes


def parts_of(site: SiteData, *, classes: bool) -> np.ndarray:
    """Which of them one site has, (k,): 1 or 0. Arguments as of :func:`part_names`."""
    if isinstance(site, FormulaSite):
        names, table, parts = part_names(site.study, classes=classes), site.study.formula.table(site.df), set[str]()
        reader = _reader(site.study)
        made = reader.arrays(site.df)[0].T
        parts |= {k for k, v in zip((*reader.columns, *reader.random), made, strict=True) if np.any(v != 0)}
        parts |= _levels_of_table(site.study.formula.columns, table)
    elif isinstance(site, ColumnSite):
        names, data = part_names(site.study, classes=classes), site.study
        inputs = dict(zip(data.reader.names, site.pool.x_train.T, strict=True))
        parts = {name for name, values in inputs.items() if np.any(values != 0)}
        for name in data.x:
            if data.dictionary.columns[name].kind == "flag":
                parts |= {f"{name}={int(value)}" for value in np.unique(inputs[name])}
        parts |= {f"{data.y}={label}" for k, label in enumerate(data.labels) if np.any(site.pool.y_train == k)}
    elif isinstance(site, ModelSite):
        names, parts = part_names(site.study, classes=classes), _levels_of_table(site.study.dictionary.columns, site.df)
        parts |= {str(name) for name in site.table if np.any(site.table[name] != 0)}
    else:
        assert isinstance(site, ArraySite)
        names = part_names(site.study, classes=classes)
        parts = {f"class {k}" for k in np.unique(site.pool.y_train)} if site.study.classes else set()
    return np.array([float(name in parts) for name in names])


def check_support(names: Sequence[str], sites: np.ndarray) -> None:
    """Refuses a study in which a part occurs at one or two sites.

    Args:
        names: of parts.
        sites: at how many sites each occurs, (k,). A part that occurs nowhere adds nothing to any sum.

    Raises:
        UserError: naming it, and the remedy.
    """
    few = [name for name, count in zip(names, sites, strict=True) if 0 < round(float(count)) < MIN_SITES_OF_PART]
    if few:
        more = f", and {len(few) - 1} more" if len(few) > 1 else ""
        raise UserError(
            f"{few[0]}{more}: at fewer than {MIN_SITES_OF_PART} sites, so that masked sums would show what these have: "
            "join levels in the dictionary, or leave it out"
        )


def _reader(data: FormulaData) -> StudyReader:
    """The formula's columns before means are known."""
    k = len(data.formula.numbers)
    moments = Moments(2.0, np.full(k, 2 * PROBE_MEAN), np.full(k, 2 * PROBE_MEAN**2 + 2.0), data.centres)
    return data.reader([moments.sums()])


def _level_names(columns: Mapping[str, Column], names: Sequence[str]) -> list[str]:
    """Every level of categories and flags: also of one whose column is left out for the others'."""
    levels = {name: (0, 1) if columns[name].kind == "flag" else columns[name].levels for name in names}
    return [f"{name}={level}" for name in names for level in levels[name]]


def _levels_of_table(columns: Mapping[str, Column], table: pd.DataFrame) -> set[str]:
    parts = set()
    for name in table:
        kind = columns[name].kind
        if kind == "flag":
            parts |= {f"{name}={int(value)}" for value in table[name].unique()}
        elif kind == "category":
            parts |= {f"{name}={value}" for value in table[name].unique()}
    return parts
