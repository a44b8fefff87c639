"""Tables whose columns go into a network: inputs that are standardised alike at all sites, labels that are declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...errors import UserError, unknown
from ...nn.architecture import Architecture
from ...nn.networks.build import architecture
from ...nn.networks.weights import Weights
from ..arrays import natural_pool
from ..federation import Federation
from ..outline import outline_of
from ..patients import within_cap
from ..pool import PooledDataset, Task
from ..reading.options import Reading
from ..response_units import ResponseUnits
from .dictionary import Dictionary
from .response_sums import PREFIX as RESPONSE
from .response_sums import noise_of, response_form, response_meanings, response_sums, response_units
from .study_data import SiteData
from .sums import Moments, NamedSums

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class ColumnReader:
    """Makes a network's inputs of a table's rows.

    Attributes:
        dictionary: of the table.
        x: its input columns: numbers and flags are one input each, a category one for each of its levels.
    """

    dictionary: Dictionary
    x: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """The names of the inputs."""
        columns = self.dictionary.columns
        return [f"{name}={v}" if v is not None else name for name in self.x for v in columns[name].levels or (None,)]

    @property
    def numbers(self) -> np.ndarray:
        """Which of the inputs are standardised: numbers, not flags or levels, (k,)."""
        columns = self.dictionary.columns
        kinds = [columns[name].kind for name in self.x for _ in columns[name].levels or (None,)]
        return np.array([kind in ("number", "whole") for kind in kinds])

    def __call__(self, df: pd.DataFrame) -> np.ndarray:
        """(n, k).

        Raises:
            UserError: for a table that does not fit the dictionary.
        """
        table, columns = self.dictionary.read(df, list(self.x)), []
        for name in self.x:
            levels = self.dictionary.columns[name].levels
            columns += [(table[name] == v).to_numpy(dtype=float) for v in levels] or [table[name].to_numpy(dtype=float)]
        return np.stack(columns, 1)


@dataclass(frozen=True)
class ColumnData:
    """See :class:`.study_data.StudyData`.

    Attributes:
        dictionary: of the tables.
        x: input columns.
        y: the column that is predicted: the levels of a category, or a flag, are classes; numbers are a regression's.
        name: of the study.
        network: as for :func:`~hierfl.nn.networks.build.architecture`.
        response_sd, learn_sd: a regression's standard deviation, or whose is learned, of responses that are
            standardised by sums ("shared", "clients"; "no": it is the number).
        test, validation, seed: of rows that are held out, as for :meth:`~hierfl.data.federation.Federation.from_frame`.
        patient, patient_rows: the column that names patients, and how many rows of one count; no column for all rows.
        head, weights: as for :func:`~hierfl.nn.networks.build.architecture`.
    """

    dictionary: Dictionary
    x: tuple[str, ...]
    y: str
    name: str
    network: str
    response_sd: float = 1.0
    test: float = 0.2
    validation: float = 0.0
    seed: int = 0
    learn_sd: str = "no"
    patient: str = ""
    patient_rows: int = 1
    head: str = "linear"
    weights: Weights | None = field(default=None, compare=False, repr=False)
    steps = 1

    def __post_init__(self) -> None:
        for name in (*self.x, self.y):
            if name not in self.dictionary.columns:
                raise unknown("column of the dictionary", name, self.dictionary.columns)
        if not self.x or self.y in self.x or len(set(self.x)) < len(self.x):
            raise UserError("the inputs are different columns, at least one, and not the one that is predicted")

    @property
    def reader(self) -> ColumnReader:
        """Makes inputs."""
        return ColumnReader(self.dictionary, self.x)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of a classification; none of a regression."""
        column = self.dictionary.columns[self.y]
        return ("0", "1") if column.kind == "flag" else tuple(map(str, column.levels))

    @property
    def task(self) -> Task:
        """The task: that of the column that is predicted."""
        return "classification" if self.labels else "regression"

    @property
    def centres(self) -> np.ndarray:
        """About where the inputs lie, (k,)."""
        columns = self.dictionary.columns
        return np.array([columns[name].centre for name in self.x for _ in columns[name].levels or (None,)])

    def form(self, before: Sequence[NamedSums]) -> dict[str, tuple[int, ...]]:
        """Names and shapes of a round's sums."""
        k = int(self.reader.numbers.sum())
        return {"n": (), "total": (k,), "square": (k,), **(response_form() if self.learns else {})}

    def declared_rows(self, step: int, sums: Mapping[str, Any]) -> float | None:
        """n."""
        return float(sums["n"])

    def summed_columns(self, step: int) -> Mapping[str, Sequence[str]]:
        """The inputs that are numbers, and a response that is standardised."""
        numbers = [name for name, number in zip(self.reader.names, self.reader.numbers, strict=True) if number]
        return {"": numbers, **({RESPONSE: (self.y,)} if self.learns else {})}

    def meanings(self) -> Mapping[str, str]:
        """What each sum is."""
        numbers = ", ".join(np.array(self.reader.names)[self.reader.numbers]) or "no column"
        meanings = {"n": "training rows", "total": f"sums of {numbers}", "square": f"sums of squares of {numbers}"}
        return {**meanings, **(response_meanings(self.y) if self.learns else {})}

    @property
    def learns(self) -> bool:
        """Whether responses are standardised, and their standard deviation is learned."""
        return self.task == "regression" and self.learn_sd != "no"

    def units(self, totals: Sequence[NamedSums]) -> ResponseUnits | None:
        """The units of the responses, where they are standardised."""
        return response_units(totals[0], self.dictionary.columns[self.y].centre) if self.learns else None

    def site(self, path: Path, client: str, reading: Reading | None = None) -> ColumnSite:
        """A site's table."""
        names, dictionary = (*self.x, self.y), self.dictionary.naming(self.patient)
        file = dictionary.written(path, {*names, self.patient} - {""}, reading)
        whole = file[within_cap(file, [self.patient], self.patient_rows)] if self.patient else file
        df = dictionary.read(whole, sorted(names))
        y = df[self.y].to_numpy()
        if levels := self.dictionary.columns[self.y].levels:
            position = {level: k for k, level in enumerate(levels)}
            y = np.array([position[value] for value in y.tolist()])
        pool = natural_pool(
            self.reader(df), np.asarray(y, float if self.task == "regression" else np.int64), [client] * len(df),
            None, None, None, self.test, self.seed, self.task, self.name, False, len(self.labels),
        )  # fmt: skip
        return ColumnSite(self, pool, client, whole, len(file) - len(whole))

    def constants(self, totals: Sequence[NamedSums]) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of each input, (k,): 0 and 1 of those that stay as they are."""
        numbers = self.reader.numbers
        moments = Moments.named(totals[0], self.centres[numbers])
        if moments.n < 1:
            raise UserError("the sites have no training rows")
        mean, sd = np.zeros(len(numbers)), np.ones(len(numbers))
        mean[numbers], sd[numbers] = moments.mean, np.where(moments.sd > 0, moments.sd, 1.0)
        return mean, sd

    def model(self, totals: Sequence[NamedSums], latent: bool) -> tuple[Federation, Architecture]:
        """The outline, and the network for its inputs."""
        mean, sd = self.constants(totals)
        made = outline_of(
            (len(mean),), self.task, len(self.labels), dtype=torch.float64, mean=mean, std=sd, facts=self.facts
        )
        made = replace(made, response_units=self.units(totals))
        return made, self._network(made, latent)

    def _network(self, made: Federation, latent: bool) -> Architecture:
        noise = noise_of(self.response_sd, self.learn_sd)
        return architecture(self.network, made, noise, latent, head=self.head, weights=self.weights)

    def form_model(self, site: SiteData, latent: bool) -> tuple[Federation, Architecture]:
        """The same as :meth:`model`, without sums: shapes do not depend on them."""
        return self.model([site.sums([])], latent)

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that the federation has in its ``about``."""
        return {"data": self.name, "split": "sites", "redraws": 0, "labels": list(self.labels), "reader": self.reader}

    def own_network(self, network: Architecture, federation: Federation) -> Architecture:
        """The same as all sites'."""
        return network

    def inputs(self, path: Path, federation: Federation, reading: Reading | None = None) -> pd.DataFrame:
        """A table with the input columns."""
        return self.dictionary.table(path, self.x, reading)


@dataclass(frozen=True)
class ColumnSite:
    """See :class:`.study_data.SiteData`.

    Attributes:
        study: that it is part of.
        pool: its rows, split.
        client: its name.
        file: its table with all columns of its file.
        beyond: how many rows do not count, beyond the first ones of their patients.
    """

    study: ColumnData
    pool: PooledDataset
    client: str
    file: pd.DataFrame
    beyond: int = 0
    left_out = 0

    @property
    def rows(self) -> int:
        """Training rows."""
        return len(self.pool.x_train)

    def digest(self) -> str:
        """The digest of its arrays."""
        return self.pool.digest()

    def sums(self, before: Sequence[NamedSums]) -> dict[str, Any]:
        """Moments of the training rows' numbers, and of responses that are standardised."""
        study, numbers = self.study, self.study.reader.numbers
        sums = Moments.from_columns(self.pool.x_train[:, numbers], study.centres[numbers]).sums()
        if study.learns:
            sums |= response_sums(self.pool.y_train, study.dictionary.columns[study.y].centre)
        return sums

    def federation(self, totals: Sequence[NamedSums]) -> Federation:
        """Its rows, standardised as all sites' are."""
        mean, sd = self.study.constants(totals)
        pool = replace(self.pool, mean=mean, std=sd)
        made = Federation.from_pool(pool, 0, "natural", validation=self.study.validation, seed=self.study.seed)
        return replace(made, about={**made.about, **self.study.facts}, response_units=self.study.units(totals))
