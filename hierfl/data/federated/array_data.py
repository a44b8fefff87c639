"""Arrays, such as images, in an ``.npz`` file at every site."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...errors import UserError
from ...nn.architecture import Architecture
from ...nn.networks.build import architecture
from ...nn.networks.weights import Weights
from ..federation import Federation
from ..input_scales import unscaled
from ..npz import load_npz
from ..outline import outline_of
from ..pool import PooledDataset, Task
from ..readers.npz import read_npz
from ..reading.options import Reading
from ..reading.remedies import option_flags
from ..response_units import ResponseUnits
from .response_sums import PREFIX as RESPONSE
from .response_sums import noise_of, response_form, response_meanings, response_sums, response_units
from .study_data import SiteData
from .sums import Moments, NamedSums

log = logging.getLogger("hierfl")


@dataclass(frozen=True)
class ArrayData:
    """See :class:`.study_data.StudyData`.

    Attributes:
        inputs_shape: of one input; of images channels first.
        images: whether inputs are bytes, standardised by channel; others are used as they are.
        classes: number of labels; 0 for a regression.
        name: of the study.
        network, response_sd, learn_sd, head, weights: as of :class:`.column_data.ColumnData`.
        validation, seed: of rows that are held out, as for :meth:`~hierfl.data.federation.Federation.from_pool`.
    """

    inputs_shape: tuple[int, ...]
    images: bool
    classes: int
    name: str
    network: str
    response_sd: float = 1.0
    validation: float = 0.1
    seed: int = 0
    learn_sd: str = "no"
    head: str = "linear"
    weights: Weights | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.inputs_shape or min(self.inputs_shape) < 1:
            raise UserError(f"the shape of an input is whole numbers from 1, not {list(self.inputs_shape)}")
        if self.classes == 1:
            raise UserError("a classification has at least two classes; 0 says that it is a regression")

    @property
    def steps(self) -> int:
        """One for images, whose channels are standardised, and for responses that are."""
        return int(self.images or self.learns)

    @property
    def learns(self) -> bool:
        """Whether responses are standardised, and their standard deviation is learned."""
        return self.task == "regression" and self.learn_sd != "no"

    def units(self, totals: Sequence[NamedSums]) -> ResponseUnits | None:
        """The units of the responses, where they are standardised."""
        return response_units(totals[0], 0.0) if self.learns else None

    @property
    def task(self) -> Task:
        """The task that the number of classes implies."""
        return "classification" if self.classes else "regression"

    @property
    def channels(self) -> int:
        """The channels whose constants are known: all entries are one where there are no channels."""
        return self.inputs_shape[0] if len(self.inputs_shape) == 3 else 1

    def form(self, before: Sequence[NamedSums]) -> dict[str, tuple[int, ...]]:
        """Names and shapes of a round's sums."""
        images: dict[str, tuple[int, ...]] = {"n": (), "total": (self.channels,), "square": (self.channels,)}
        return {**(images if self.images else {}), **(response_form() if self.learns else {})}

    def declared_rows(self, step: int, sums: Mapping[str, Any]) -> float | None:
        """The rows that a site's sums declare: of images, of pixels; else of responses, where these are
        standardised.
        """
        if self.images:
            return float(sums["n"]) * self.channels / math.prod(self.inputs_shape)
        return float(sums[f"{RESPONSE}n"]) if self.learns else None

    def summed_columns(self, step: int) -> Mapping[str, Sequence[str]]:
        """Channels of images, and a response that is standardised."""
        channels = [f"channel {k + 1}" for k in range(self.channels * self.images)]
        return {"": channels, **({RESPONSE: ("the response",)} if self.learns else {})}

    def meanings(self) -> Mapping[str, str]:
        """What each sum is."""
        images = {
            "n": "numbers in each channel of the training images", "total": "sums of each channel",
            "square": "sums of squares of each channel",
        }  # fmt: skip
        return {**(images if self.images else {}), **(response_meanings("the response") if self.learns else {})}

    def site(self, path: Path, client: str, reading: Reading | None = None) -> ArraySite:
        """A site's npz file: x_train, y_train, x_test, y_test."""
        _refuse_reading(path, reading)
        pool = load_npz(path, self.classes)
        shape, kind = pool.x_train.shape[1:], "images" if pool.x_train.dtype == np.uint8 else "numbers"
        if (shape, kind) != (self.inputs_shape, "images" if self.images else "numbers"):
            wanted = f"{'images' if self.images else 'numbers'} of shape {self.inputs_shape}"
            raise UserError(f"{path} holds {kind} of shape {shape}, and the study is of {wanted}")
        if pool.task != self.task:
            raise UserError(f"{path} holds targets of a {pool.task}, and the study is a {self.task}")
        if what := unscaled(pool):
            log.warning(
                "%s: %s, far from unit scale, and a study of arrays uses it as it is: save pictures as uint8, and "
                "standardise other inputs alike at all sites", path.name, what,
            )  # fmt: skip
        train, test = (np.full(len(y), client) for y in (pool.y_train, pool.y_test))
        return ArraySite(self, replace(pool, name=self.name, mean=None, std=None, client_train=train, client_test=test))

    def constants(self, totals: Sequence[NamedSums]) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Mean and standard deviation of each channel, of images scaled to [0, 1]."""
        if not self.images:
            return None, None
        moments = Moments.named(totals[0], np.zeros(self.channels))
        if moments.n < 1:
            raise UserError("the sites have no training images")
        shape = (-1, 1, 1) if len(self.inputs_shape) == 3 else ()
        mean, sd = moments.mean / 255, np.maximum(moments.sd / 255, 1e-8)
        return mean.astype(np.float32).reshape(shape), sd.astype(np.float32).reshape(shape)

    def model(self, totals: Sequence[NamedSums], latent: bool) -> tuple[Federation, Architecture]:
        """The outline, and the network for its inputs."""
        mean, sd = self.constants(totals)
        facts = {"data": self.name, "split": "sites", "redraws": 0}
        kind = torch.uint8 if self.images else torch.float32
        made = outline_of(self.inputs_shape, self.task, self.classes, dtype=kind, mean=mean, std=sd, facts=facts)
        made = replace(made, response_units=self.units(totals))
        return made, self._network(made, latent)

    def _network(self, made: Federation, latent: bool) -> Architecture:
        noise = noise_of(self.response_sd, self.learn_sd)
        return architecture(self.network, made, noise, latent, head=self.head, weights=self.weights)

    def form_model(self, site: SiteData, latent: bool) -> tuple[Federation, Architecture]:
        """The same as :meth:`model`, without sums: shapes do not depend on them."""
        return self.model([site.sums([]) for _ in range(self.steps)], latent)

    def own_network(self, network: Architecture, federation: Federation) -> Architecture:
        """The same as all sites'."""
        return network

    def inputs(self, path: Path, federation: Federation, reading: Reading | None = None) -> np.ndarray:
        """An npz file with x, raw inputs as at the sites."""
        _refuse_reading(path, reading)
        x = read_npz(path, ("x",))["x"]
        if self.images and x.ndim == 4 and x.shape[1:] != self.inputs_shape:
            x = np.moveaxis(x, -1, 1)
        return x[:, None] if self.images and x.ndim == 3 else x


def _refuse_reading(path: Path, reading: Reading | None) -> None:
    """Arrays have types."""
    if reading is not None and (flags := option_flags(reading.as_table())):
        raise UserError(f"{flags[0]} is for tables, and {path} holds arrays")


@dataclass(frozen=True)
class ArraySite:
    """See :class:`.study_data.SiteData`."""

    study: ArrayData
    pool: PooledDataset
    left_out, beyond = 0, 0

    @property
    def rows(self) -> int:
        """Training examples."""
        return len(self.pool.x_train)

    def digest(self) -> str:
        """The digest of its arrays."""
        return self.pool.digest()

    def sums(self, before: Sequence[NamedSums]) -> dict[str, Any]:
        """Moments of each channel: whole numbers, which are exact; and of responses that are standardised."""
        x, y = self.pool.x_train, response_sums(self.pool.y_train, 0.0) if self.study.learns else {}
        if not self.study.images:
            return y
        axes = (0, 2, 3) if x.ndim == 4 else tuple(range(x.ndim))
        total = x.sum(axes, dtype=np.int64).reshape(-1)
        square = np.square(x, dtype=np.int64).sum(axes).reshape(-1)
        n = np.array(x.size / self.study.channels)
        return {"n": n, "total": total.astype(float), "square": square.astype(float), **y}

    def federation(self, totals: Sequence[NamedSums]) -> Federation:
        """Its examples, standardised as all sites' are."""
        mean, sd = self.study.constants(totals)
        pool = replace(self.pool, mean=mean, std=sd)
        made = Federation.from_pool(pool, 0, "natural", validation=self.study.validation, seed=self.study.seed)
        return replace(made, about={**made.about, "split": "sites"}, response_units=self.study.units(totals))
