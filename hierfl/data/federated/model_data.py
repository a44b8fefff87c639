"""Tables for a plain Pyro model: columns by name, as they are; the rows of a site are one client."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ...errors import UserError, unknown
from ...nn.architecture import Architecture
from ..column_design import ColumnDesign
from ..column_table import NO_RESPONSE, coded
from ..far_numbers import spread_of
from ..federation import Federation
from ..formula.missing import Missing, whole_rows
from ..outline import outline_of
from ..reading.options import Reading
from ..reading.read import CHECKED
from .dictionary import Dictionary
from .study_data import SiteData
from .sums import NamedSums

if TYPE_CHECKING:
    import pandas as pd

#: what a site's rows are grouped by: it is no column of theirs
CLIENT = "hierfl.client"


def design_of_dictionary(dictionary: Dictionary, columns: Sequence[str], rows: int = 1) -> ColumnDesign:
    """Columns of a dictionary as a model reads them: the levels of a category are coded 0, 1, ... in their order.

    Args:
        dictionary: of the tables.
        columns: those that are meant, in the model's order.
        rows: that a site has at most.

    Raises:
        UserError: for a column that the dictionary lacks, and for one of names that stay at their site.
    """
    levels = {}
    for name in columns:
        if name not in dictionary.columns:
            raise unknown("column of the dictionary", name, dictionary.columns)
        column = dictionary.columns[name]
        if column.kind == "name":
            raise UserError(f"column {name!r} is of names, which stay at their site: a model reads numbers and levels")
        if column.levels:
            levels[name] = tuple(map(str, column.levels))
    return ColumnDesign.from_columns(columns, levels, rows)


@dataclass(frozen=True)
class ModelData:
    """See :class:`.study_data.StudyData`. Nothing is asked before the first round: no column is standardised.

    Attributes:
        dictionary: of the tables; its other columns are neither read nor asked for.
        design: the columns that the model reads.
        name: of the study.
        na: what becomes of rows that lack a value of such a column, "refuse" or "drop".
        seed: of the study.
    """

    dictionary: Dictionary
    design: ColumnDesign
    name: str
    na: Missing = "refuse"
    seed: int = 0
    steps: ClassVar[int] = 0
    #: nothing is held out
    test: ClassVar[float] = 0.0
    validation: ClassVar[float] = 0.0

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that the model reads."""
        return self.design.columns

    def form(self, before: Sequence[NamedSums]) -> dict[str, tuple[int, ...]]:
        """None."""
        return {}

    def declared_rows(self, step: int, sums: Mapping[str, Any]) -> float | None:
        """None: no sums are asked for."""
        return None

    def summed_columns(self, step: int) -> Mapping[str, Sequence[str]]:
        """None."""
        return {}

    def meanings(self) -> Mapping[str, str]:
        """None."""
        return {}

    def site(self, path: Path, client: str, reading: Reading | None = None) -> ModelSite:
        """A site's table."""
        names = list(self.columns)
        file = self.dictionary.written(path, names, reading)
        kept = file[whole_rows(file, names)] if self.na == "drop" else file
        if not len(kept):
            raise UserError(f"{path} has no row{' without missing values' * bool(len(file))}")
        kept = kept.reset_index(drop=True)
        return ModelSite(self, client, self.dictionary.read(kept, names), kept, len(file) - len(kept))

    def model(self, totals: Sequence[NamedSums], latent: bool) -> tuple[Federation, Architecture]:
        """The outline, and the columns."""
        made = outline_of((len(self.columns),), "regression", dtype=torch.float64, facts=self.facts)
        return made, self.design

    def form_model(self, site: SiteData, latent: bool) -> tuple[Federation, Architecture]:
        """The same as :meth:`model`: nothing depends on sums."""
        return self.model([], latent)

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that the federation has in its ``about``."""
        levels = dict(self.design.level_names)
        return {"data": self.name, "split": "sites", "redraws": 0, "columns": list(self.columns), "levels": levels,
                "client": "site"}  # fmt: skip

    def own_network(self, network: Architecture, federation: Federation) -> Architecture:
        """The same as all sites'."""
        return network

    def inputs(self, path: Path, federation: Federation, reading: Reading | None = None) -> pd.DataFrame:
        """A table with the columns that it has of those the model reads: what is observed may be left out."""
        table = self.dictionary.written(path, self.columns, reading)
        return self.dictionary.read(table, [name for name in self.columns if name in table.columns])


@dataclass(frozen=True)
class ModelSite:
    """See :class:`.study_data.SiteData`.

    Attributes:
        study: that it is part of.
        client: its name.
        df: the columns that the model reads, checked.
        file: the same rows with all columns of its file.
        left_out: how many rows were not, for want of a value.
    """

    study: ModelData
    client: str
    df: pd.DataFrame
    file: pd.DataFrame
    left_out: int = 0
    beyond: ClassVar[int] = 0

    @property
    def rows(self) -> int:
        """n."""
        return len(self.df)

    def digest(self) -> str:
        """The digest of the columns that the model reads."""
        return hashlib.sha256(self.df.to_csv(index=False, lineterminator="\n").encode()).hexdigest()[:16]

    def sums(self, before: Sequence[NamedSums]) -> dict[str, Any]:
        """None."""
        return {}

    @cached_property
    def table(self) -> pd.DataFrame:
        """Columns as the model reads them, numbers."""
        return coded(self.df, self.study.design)

    def federation(self, totals: Sequence[NamedSums]) -> Federation:
        """Its rows as one client's."""
        study, names = self.study, list(self.study.columns)
        wide = self.table.assign(**{CLIENT: self.client, NO_RESPONSE: 0.0})
        wide.attrs[CHECKED] = [*names, NO_RESPONSE]
        made = Federation.from_frame(
            wide, client=CLIENT, y=NO_RESPONSE, x=names, test=0.0, task="regression", standardise=False,
            spellings="keep",
        )  # fmt: skip
        spread = spread_of(self.table, [name for name in names if name not in study.design.level_names])
        facts = {**made.about, **study.facts, "spread": spread}
        return replace(made, about={**facts, "left_out": {self.client: self.left_out}} if self.left_out else facts)
