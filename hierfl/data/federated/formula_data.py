"""Tables for a formula: a mixed-effects model of sites whose rows stay where they are."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...errors import UserError
from ...nn.architecture import Architecture
from ..federation import Federation
from ..formula.design import Design
from ..formula.missing import Missing, whole_rows
from ..formula.trials import trials_columns
from ..outline import outline_of
from ..patients import within_cap
from ..reading.options import Reading
from .design import StudyFormula
from .design_sums import DesignSums
from .study_data import SiteData
from .study_reader import StudyReader, study_reader
from .sums import Moments, NamedSums

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("hierfl")

#: of a study's data: sums of the first round, and the reader that was made of them last
MADE = "_reader"


@dataclass(frozen=True)
class FormulaData:
    """See :class:`.study_data.StudyData`.

    Attributes:
        formula: with the dictionary of the tables.
        name: of the study.
        test, validation, seed: of rows that are held out, as for
            :func:`~hierfl.data.formula.federate.from_formula`.
        na: what becomes of rows that lack a value; likewise.
        patient, patient_rows: the column that names patients, and how many rows of one count; no column for all rows.
    """

    formula: StudyFormula
    name: str
    test: float = 0.0
    validation: float = 0.0
    seed: int = 0
    na: Missing = "refuse"
    patient: str = ""
    patient_rows: int = 1
    steps = 2

    def reader(self, totals: Sequence[NamedSums]) -> StudyReader:
        """What makes the columns, from the first round's sums; from both rounds' the independent ones alone."""
        first = {name: np.asarray(value) for name, value in totals[0].items()}
        key = {name: (value.dtype.str, value.shape, value.tobytes()) for name, value in first.items()}
        made, reader = vars(self).get(MADE, ({}, None))
        if reader is None or key != made:
            reader = study_reader(self.formula, Moments.named(totals[0], self.centres))
            vars(self)[MADE] = key, reader
        return reader if len(totals) < 2 else reader.reduced(DesignSums.named(totals[1], self.formula.centre))

    @property
    def centres(self) -> np.ndarray:
        """About where the predictors lie, (k,)."""
        return np.array([self.formula.columns[name].centre for name in self.formula.numbers])

    def form(self, before: Sequence[NamedSums]) -> dict[str, tuple[int, ...]]:
        """Names and shapes of a round's sums."""
        if not before:
            k = len(self.formula.numbers)
            return {"n": (), "total": (k,), "square": (k,)}
        reader = self.reader(before)
        p, q = len(reader.fixed), len(reader.random)
        shapes: dict[str, tuple[int, ...]] = {
            "gram": (p, p),
            "products": (p, p),
            "varying": (q,),
            "sites": (),
            "informative": (),
            "centre": (2,),
        }
        homes = len(self.formula.places.outer)
        shapes |= {"levels": (len(self.formula.ordinal_levels),)} if self.formula.ordinal_levels else {}
        inside = len(self.formula.levels.inside)
        shapes |= {"several": (inside,)} if inside else {}
        shapes |= {"homes": (homes,)} if homes else {}
        shapes |= {"histogram": (bins,)} if (bins := self.formula.response.bins) else {}
        for part, k in (("response", 1), ("random", q)):
            shapes |= {f"{part}.n": (), f"{part}.total": (k,), f"{part}.square": (k,)}
        return shapes

    def declared_rows(self, step: int, sums: Mapping[str, Any]) -> float | None:
        """n, in the first step."""
        return None if step else float(sums["n"])

    def summed_columns(self, step: int) -> Mapping[str, Sequence[str]]:
        """The numbers first, then the response."""
        return {"response.": ("the response",)} if step else {"": self.formula.numbers}

    def meanings(self) -> Mapping[str, str]:
        """What each sum is."""
        what = {"n": "rows", "total": "sums", "square": "sums of squares"}
        numbers = ", ".join(self.formula.numbers) or "no column"
        return {
            "n": "rows", **{name: f"{what[name]} of {numbers}" for name in ("total", "square")},
            **{f"response.{k}": v if k == "n" else f"{v} of the response" for k, v in what.items()},
            **{f"random.{k}": v if k == "n" else f"{v} of the random effects' columns" for k, v in what.items()},
            "gram": "sums of products of the fixed effects' columns (X'X)",
            "products": "the same of centred and scaled columns",
            "varying": "of each random effect's column, whether its values differ",
            "centre": "two numbers, whose ratio says about where the response lies",
            "levels": "rows of each level of the response", "sites": "1",
            "histogram": "events in each half octave of time, fewer than 5 counted with the next ones",
            "several": "whether there is more than one group inside",
            "homes": "which group of sites it is in, or which of the groups that cross sites it has (1)",
            "informative": "whether there are more rows than random effects",
        }  # fmt: skip

    def site(self, path: Path, client: str, reading: Reading | None = None) -> FormulaSite:
        """A site's table."""
        names, dictionary = sorted(self.formula.used), self.formula.dictionary.naming(self.patient)
        df = dictionary.written(path, {*names, self.patient} - {""}, reading)
        kept = df[whole_rows(df, names)] if self.na == "drop" else df
        if not len(kept):
            raise UserError(f"{path} has no row without missing values")
        factor = self.formula.levels.client
        if factor in df.columns and (several := df[factor].nunique()) > 1:
            text = "%s: column %r holds %d names, and all rows count as those of one site, %s"
            log.warning(text, path, factor, several, client)
        whole, left_out = kept, len(df) - len(kept)
        if self.patient:
            kept = kept[within_cap(kept, [self.patient], self.patient_rows)]
        return FormulaSite(self, client, dictionary.read(kept, names), left_out, kept, len(whole) - len(kept))

    def model(self, totals: Sequence[NamedSums], latent: bool) -> tuple[Federation, Architecture]:
        """The design, and the outline of its columns."""
        reader = self.reader(totals)
        return self._outline(reader), reader.design(DesignSums.named(totals[1], self.formula.centre))

    def form_model(self, site: SiteData, latent: bool) -> tuple[Federation, Architecture]:
        """The design's columns; what no fit could tell apart is not looked for in one site's rows."""
        reader = self.reader([site.sums([])])
        return self._outline(reader), reader.columns_only()

    def own_network(self, network: Architecture, federation: Federation) -> Architecture:
        """The network with as many groups inside as the site has."""
        assert isinstance(network, Design)
        return network if network.inner is None else network.with_most(federation.about["reader"].places.most)

    def _outline(self, reader: StudyReader) -> Federation:
        return outline_of((reader.columns_only().width,), "regression", dtype=torch.float64, facts=self.facts(reader))

    def facts(self, reader: StudyReader) -> dict[str, Any]:
        """The facts that the federation has in its ``about``."""
        facts = {"reader": reader.reader, "data": self.name, "split": self.formula.formula, "redraws": 0}
        facts["ranges"] = self.formula.dictionary.ranges
        dropped = reader.reader.dropped
        return {**facts, "dropped": dropped} if dropped else facts

    def inputs(self, path: Path, federation: Federation, reading: Reading | None = None) -> pd.DataFrame:
        """A table with the formula's predictors, and with the trials where it has their columns."""
        more = self.formula.more
        needed = self.formula.terms.predictors | ({more.known_se, more.precision_weights} - {""})
        table = self.formula.dictionary.written(path, needed | trials_columns(self.formula.formula), reading)
        used = needed | (trials_columns(self.formula.formula) & set(table.columns))
        return self.formula.dictionary.read(table, sorted(used))


@dataclass(frozen=True)
class FormulaSite:
    """See :class:`.study_data.SiteData`.

    Attributes:
        study: that it is part of.
        client: its name.
        df: its table, checked.
        left_out: how many rows were not, for want of a value.
        whole: the same rows with all columns of its file; None for those of the table.
        beyond: how many rows do not count, beyond the first ones of their patients.
    """

    study: FormulaData
    client: str
    df: pd.DataFrame
    left_out: int
    whole: pd.DataFrame | None = None
    beyond: int = 0

    @property
    def file(self) -> pd.DataFrame:
        """Its rows with all columns of its file."""
        return self.df if self.whole is None else self.whole

    @property
    def rows(self) -> int:
        """n."""
        return len(self.df)

    def digest(self) -> str:
        """The digest of the table's columns that are used."""
        return hashlib.sha256(self.df.to_csv(index=False, lineterminator="\n").encode()).hexdigest()[:16]

    def sums(self, before: Sequence[NamedSums]) -> dict[str, Any]:
        """Moments of the predictors; then those of the columns."""
        if not before:
            return self.study.formula.first(self.df).sums()
        return self.study.reader(before).second(self.df).sums()

    def federation(self, totals: Sequence[NamedSums]) -> Federation:
        """Its rows, as the pooled table's columns would have them."""
        study = self.study
        reader = study.reader(totals)
        made = reader.federation(
            self.df, self.client, test=study.test, validation=study.validation, seed=study.seed
        )  # fmt: skip
        facts = {**made.about, **study.facts(reader), "reader": made.about["reader"]}
        return replace(made, about={**facts, "left_out": {self.client: self.left_out}} if self.left_out else facts)
